"""`make differential`: thousands of random clouds and models through the command line, against ten lines of float64.

    python tests/differential/many.py --clouds 3000 --models 300 --log differential.jsonl

Each case is a line of the log, which is read back: the same command goes on. Every hundredth case runs in a process of
its own, the others in this one. `--summary` prints the table.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src")]

from logged import add_line, lines_of  # noqa: E402  # found by the line above


def kinds() -> dict[str, Callable[..., list[str]]]:
    import torch

    from differential import clouds, models

    torch.set_num_threads(1)
    return {"clouds": clouds.problems_of, "models": models.problems_of}


def attack(given: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    done = {(line["kind"], line["number"]) for line in found}
    for kind, problems_of in kinds().items():
        for number in range(getattr(given, kind)):
            if (kind, number) in done:
                continue
            try:
                problems = problems_of(number, given.work / kind, apart=number % 100 == 99)
            except Exception:
                problems = [traceback.format_exc(limit=-3)]
            found.append({"kind": kind, "number": number, "problems": problems})
            add_line(given.log, found[-1])
            if problems:
                print(f"{kind} {number}: {'; '.join(problems[:5])}", flush=True)


def table(found: list[dict[str, Any]]) -> str:
    rows = ["| cases | how many | disagree |", "|---|---|---|"]
    for kind in dict.fromkeys(line["kind"] for line in found):
        own = [line for line in found if line["kind"] == kind]
        rows.append(f"| {kind} | {len(own):,} | {sum(bool(line['problems']) for line in own):,} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clouds", type=int, default=3000)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--log", type=Path, default=Path("differential.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/anisoscope-differential"))
    parser.add_argument("--summary", action="store_true", help="Print the table of the log and end.")
    given = parser.parse_args()
    found = lines_of(given.log)
    if not given.summary:
        attack(given, found)
    print(table(found))
    return int(any(line["problems"] for line in found))


if __name__ == "__main__":
    sys.exit(main())
