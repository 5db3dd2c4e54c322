"""`make fuzz`: a million inputs over every reader and the command line, guided by coverage.

    python tests/fuzz/many.py --inputs 1000000 --log fuzz.jsonl

Each target runs in a process of its own, in rounds: atheris (libFuzzer) with the package instrumented where it is
installed, else mutations of the seeds without guidance. A watchdog ends what takes longer than ten seconds, a limit
what takes more than 4 GB. A finding is kept once for each place that it comes from, as `FOUND/TARGET-HASH`; the log is
read back, so that the same command goes on, and `--summary` prints the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src")]

from logged import add_line, lines_of  # noqa: E402  # found by the line above

SLOW = 10  # seconds
MEMORY = 4096  # megabytes
ROUND = 50_000


class Hang(BaseException):
    """One input took too long."""


class Attempt:
    """Tries inputs of a target, and keeps what goes wrong and how many were tried."""

    def __init__(self, name: str, found: Path, report: Path, inputs: int) -> None:
        from fuzz.targets import TARGETS

        self.name, self.target, self.found, self.report = name, TARGETS[name], found, report
        self.tried, self.accepted, self.inputs = 0, 0, inputs
        self.findings: dict[str, str] = {}
        for content in self.target.seeds:
            self.target.try_one(content)  # what is imported on first use is imported now
        signal.signal(signal.SIGALRM, self._too_long)

    def _too_long(self, *_: object) -> None:
        raise Hang(f"more than {SLOW} s")

    def __call__(self, data: bytes) -> None:
        self.tried += 1
        signal.alarm(SLOW)
        try:
            self.accepted += self.target.try_one(data)
        except (Exception, Hang) as error:
            self._keep(data, error)
        finally:
            signal.alarm(0)
        if self.tried % 100 == 0 or self.tried >= self.inputs:
            self.write()

    def _keep(self, data: bytes, error: BaseException) -> None:
        frames = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__)]
        place = f"{type(error).__name__} at {' '.join(frames[-3:])}"
        if place not in self.findings:
            name = f"{self.name.replace(' ', '-')}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
            self.found.mkdir(parents=True, exist_ok=True)
            (self.found / name).write_bytes(data)
            self.findings[place] = f"{name}: {str(error)[:200]}"

    def write(self) -> None:
        state = {"tried": self.tried, "accepted": self.accepted, "findings": self.findings}
        self.report.write_text(json.dumps(state))


# -- one round of one target, in a process of its own ---------------------------------------------------------------


def work(name: str, inputs: int, seed: int, found: Path, corpus: Path, report: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    try:
        import atheris  # pyright: ignore[reportMissingImports]
    except ImportError:
        plainly(Attempt(name, found, report, inputs), inputs, random.Random(seed))
        return
    with atheris.instrument_imports(include=["anisoscope"]):
        from anisoscope.cli import main  # noqa: F401
        from anisoscope.inputs import sources  # noqa: F401
        from anisoscope.inputs.vectors import source  # noqa: F401
        from anisoscope.models import checkpoints  # noqa: F401
        from anisoscope.runs import perform  # noqa: F401

        attempt = Attempt(name, found, report, inputs)
    corpus.mkdir(parents=True, exist_ok=True)
    for content in attempt.target.seeds:
        (corpus / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
    limits = [f"-rss_limit_mb={MEMORY}", f"-timeout={3 * SLOW}", f"-runs={inputs}", f"-seed={seed + 1}"]
    atheris.Setup(["fuzz", *limits, "-max_len=4096", "-verbosity=0", "-print_final_stats=0", str(corpus)], attempt)
    atheris.Fuzz()


def plainly(attempt: Attempt, inputs: int, rng: random.Random) -> None:
    """Without a fuzzer: seeds with bytes changed, cut out, doubled and joined."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY << 20, -1))
    for _ in range(inputs):
        attempt(mutated(rng.choice(attempt.target.seeds), attempt.target.seeds, rng))


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at, end = sorted((rng.randint(0, len(found)), min(len(found), rng.randint(0, len(found)))))
        kind = rng.randrange(6)
        if kind == 0 and found:
            found[min(at, len(found) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at : at + rng.choice([1, 4, end - at])]
        elif kind == 2:
            found[at:at] = rng.randbytes(rng.choice([1, 2, 4, 8]))
        elif kind == 3:
            found[at:at] = found[at : at + rng.choice([1, 8, 64])]
        elif kind == 4:
            other = rng.choice(others)
            found[at:] = other[min(at, len(other)) :]
        else:
            found[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"-1", b"1e999", b"null", b"[[[[", b'"', b"\n"])
    return bytes(found)


# -- all targets ---------------------------------------------------------------------------------------------------


def plan(inputs: int, wanted: list[str]) -> dict[str, int]:
    """How many inputs each target gets."""
    from fuzz.targets import TARGETS

    chosen = {name: one.share for name, one in TARGETS.items() if not wanted or name in wanted}
    return {name: round(inputs * share / sum(chosen.values())) for name, share in chosen.items()}


def one_round(given: argparse.Namespace, name: str, inputs: int, seed: int) -> dict[str, Any]:
    report = given.found / f".report-{os.getpid()}"
    report.unlink(missing_ok=True)
    own = [sys.executable, __file__, "--work", name, "--inputs", inputs, "--seed", seed]
    words = [*own, "--found", given.found, "--corpus", given.corpus, "--report", report]
    began = time.monotonic()
    try:
        ended = subprocess.run([*map(str, words)], capture_output=True, timeout=given.patience, cwd=given.found)
        code, said = ended.returncode, ended.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        code, said = 0, ""
    state = json.loads(report.read_text()) if report.exists() else {"tried": 0, "accepted": 0, "findings": {}}
    if code != 0:
        last = [line for line in said.splitlines() if line.strip()][-6:]
        state["findings"][f"the process ended with {code}"] = " / ".join(last)[-800:]
    return {"target": name, **state, "seconds": round(time.monotonic() - began, 1)}


def table(found: list[dict[str, Any]]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, set[str]] = defaultdict(set)
    for line in found:
        for name in (line["target"], "all"):
            counts[name].update(tried=line["tried"], accepted=line["accepted"])
            places[name] |= {f"{line['target']}: {place}" for place in line["findings"]}
    rows = ["| reader | inputs | read | findings |", "|---|---|---|---|"]
    for name in (*(one for one in counts if one != "all"), "all"):
        rows.append(f"| {name} | {counts[name]['tried']:,} | {counts[name]['accepted']:,} | {len(places[name])} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--found", type=Path, default=Path("/tmp/anisoscope-fuzz/found"))
    parser.add_argument("--corpus", type=Path, default=Path("/tmp/anisoscope-fuzz/corpus"))
    parser.add_argument("--target", action="append", default=[], help="Only this one (may be repeated).")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=900, help="Seconds that one round may take.")
    parser.add_argument("--summary", action="store_true", help="Print the table of the log and end.")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.inputs, given.seed, given.found, given.corpus / given.work, given.report)
        return 0
    found = lines_of(given.log)
    if not given.summary:
        given.found.mkdir(parents=True, exist_ok=True)
        rounds(given, found)
        shutil.rmtree(given.found / ".work", ignore_errors=True)
    print(table(found))
    return int(any(line["findings"] for line in found))


def rounds(given: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Rounds of every target until each has had its inputs; a target that ends ten times at once is given up."""
    goal, done = plan(given.inputs, given.target), Counter[str]()
    for line in found:
        done[line["target"]] += line["tried"]
    number = len(found)
    while True:
        left = [name for name in goal if done[name] < 0.99 * goal[name]]
        if not left:
            return
        for name in left:
            number += 1
            line = one_round(given, name, min(ROUND, goal[name] - done[name]), given.seed + number)
            done[name] += max(line["tried"], goal[name] // 20 + 1 if not line["tried"] else 0)
            found.append(line)
            add_line(given.log, line)
            said = "; ".join(f"{place} ({what})" for place, what in line["findings"].items())
            print(f"{sum(done.values()):9,} {name}: {line['tried']:,} in {line['seconds']} s {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
