"""The log of a long harness: a line of JSON for each case, read back, so that the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines_of(log: Path) -> list[dict[str, Any]]:
    """The cases of the log; where the harness was killed, the last line is cut off."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def add_line(log: Path, case: dict[str, Any]) -> None:
    with log.open("a") as stream:
        stream.write(json.dumps(case) + "\n")
