"""Known vulnerabilities of what is installed here, by pip-audit: `make audit`.

pip-audit ends well when it could look nothing up. Here that is an answer of its own: exit code 0 for "looked up,
nothing known", 1 for a vulnerability, 2 where nothing could be looked up (no network, a mirror without PyPI's JSON).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def report(dependencies: list[dict[str, Any]]) -> int:
    """Say what is known; the exit code.

    >>> report([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found on PyPI"}])
    1 packages looked up, 1 could not be (not found on PyPI): 0 known vulnerabilities
    0
    >>> report([{"name": "b", "skip_reason": "not found on PyPI"}])
    0 packages looked up, 1 could not be (not found on PyPI): nothing is known
    2
    """
    skipped = [one["skip_reason"] for one in dependencies if "skip_reason" in one]
    looked_up = [one for one in dependencies if "skip_reason" not in one]
    found = [(one, flaw) for one in looked_up for flaw in one["vulns"]]
    for one, flaw in found:
        print(f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}")
    why = f", {len(skipped)} could not be ({skipped[0][:60]})" if skipped else ""
    known = f"{len(found)} known vulnerabilities" if looked_up else "nothing is known"
    print(f"{len(looked_up)} packages looked up{why}: {known}")
    return 1 if found else 0 if looked_up else 2


def main() -> int:
    words = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json"]
    ended = subprocess.run(words, capture_output=True, text=True)
    try:
        return report(json.loads(ended.stdout)["dependencies"])
    except (ValueError, KeyError):
        print((ended.stderr or ended.stdout).strip()[-500:])
        print("nothing could be looked up: pip-audit needs PyPI")
        return 2


if __name__ == "__main__":
    sys.exit(main())
