"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `make test-lowest` installs them.

torch stays at the version of constraints.txt: another one would bring gigabytes of GPU libraries.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("gguf", "train")


def lowest() -> dict[str, str]:
    """The lower bound of every dependency at run time, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    found = {match[1]: match[2] for one in wanted if (match := re.match(r"([\w-]+)>=([\w.]+)", one))}
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return found | ({"torch": pinned[1]} if pinned else {})


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in lowest().items()))
