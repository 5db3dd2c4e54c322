"""`make faults`: every command killed with SIGKILL at random moments, continued, and compared with the undisturbed one.

    python tests/faults/kills.py --kills 1000 --log faults.jsonl

The libraries are imported once; each attempt is a fork of this process, so that a kill and its continuation cost a
second or two. A moment is either a time, drawn over the length of an undisturbed run, or an event: the k-th time that
the process opens a file for writing, renames, removes or makes one, and up to 4 ms after it (so also in the middle of
saving, of figures, of merging). Half of the continuations are killed again. Each case is a line of the log, which is
read back: the same command goes on, and `--summary` prints the table.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parent.parent / "src")]

import cases  # noqa: E402  # found by the line above
from faults import jobs  # noqa: E402
from logged import add_line, lines_of  # noqa: E402

LIMIT = 120.0  # seconds until a command is taken to hang


class Moment(NamedTuple):
    """When to kill: so many seconds after the start, or after the k-th event of the file system."""

    after: float
    event: int = 0


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float
    events: int


def run(*words: object, moment: Moment | None = None, scratch: Path = Path("/tmp")) -> Ended:
    """A command in a fork of this process, killed at the moment if there is one."""
    streams = [scratch / f".kills-{os.getpid()}.{name}" for name in ("out", "err")]
    read, write = os.pipe()
    started, pid = time.monotonic(), os.fork()
    if pid == 0:
        os.close(read)
        _child([*map(str, words)], streams, write, moment)
    os.close(write)
    events = _watch(pid, read, moment, started)
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = [path.read_text(encoding="utf-8", errors="replace") for path in streams]
    return Ended(code, said[0], said[1], time.monotonic() - started, events)


def _child(words: list[str], streams: list[Path], report: int, moment: Moment | None) -> None:
    """The forked process; it ends here."""
    from anisoscope.cli.main import main

    for path, stream in zip(streams, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ["ANISOSCOPE_SAVE_EVERY"] = "0"
    _tell_events(report, moment)
    code: Any = 0
    try:
        main(words)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def _tell_events(report: int, moment: Moment | None) -> None:
    """Send a byte to the parent for every event; at the one of the moment, die or wait to be killed."""

    def act(count: int) -> None:
        if moment and count == moment.event and not moment.after:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(report, b".")

    cases.on_change(act)


def _watch(pid: int, read: int, moment: Moment | None, started: float) -> int:
    """Count the events of the child until it ends; kill it at the moment, or when it hangs."""
    count, killed, waited = 0, False, 0.0
    while True:
        due = moment.after - (time.monotonic() - started) if moment and not moment.event and not killed else 1.0
        step = min(max(due, 0.0), 1.0)
        if select.select([read], [], [], step)[0]:
            got = os.read(read, 1 if moment and moment.event else 4096)
            if not got:
                return count
            count += len(got)
            struck = moment and moment.event == count
            time.sleep(moment.after if moment and struck else 0)
        else:
            waited += step  # not the clock's time: this process may have been stopped meanwhile
            struck = due <= 0
        if struck and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
        if waited > LIMIT:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError("a command hangs")


# -- one case ------------------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """The undisturbed run of a command."""

    folder: Path
    seconds: float
    events: int


def draw_moment(rng: random.Random, whole: Whole) -> Moment:
    if rng.random() < 0.5:
        return Moment(rng.uniform(0.0, whole.seconds))
    return Moment(rng.choice([0.0, rng.uniform(0, 0.004)]), rng.randint(1, max(1, whole.events)))


def case(command: str, world: Path, whole: Whole, folder: Path, rng: random.Random) -> dict[str, Any]:
    """Kill, perhaps again and again, continue, compare."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = [*jobs.words_of(command, world), "--out", jobs.out_of(command, folder)]
    moments, kills, problems = [], 0, []
    while not moments or rng.random() < 0.6:
        moments.append(draw_moment(rng, whole))
        ended = run(*words, moment=moments[-1], scratch=folder.parent)
        kills += ended.code == -signal.SIGKILL
        if ended.code not in (0, -signal.SIGKILL):
            problems.append(f"after {kills} kills: {ended.err[-500:]}")
    ended = run(*words, scratch=folder.parent)
    if ended.code != 0:
        problems.append(f"code {ended.code}: {ended.err[-500:]}")
    else:
        problems += jobs.differences(folder, whole.folder)[:5]
    return {"command": command, "kills": kills, "moments": moments, "problems": problems}


def undisturbed(command: str, world: Path, folder: Path) -> Whole:
    folder.mkdir(parents=True)
    ended = run(*jobs.words_of(command, world), "--out", jobs.out_of(command, folder), scratch=folder.parent)
    assert ended.code == 0, (command, ended.err)
    return Whole(folder, ended.seconds, ended.events)


# -- many ------------------------------------------------------------------------------------------------------


def preload() -> None:
    """Import once what the commands import, without starting threads."""
    from importlib import import_module

    import torch

    torch.set_num_threads(1)
    names = (
        *cases.PRELOAD,
        "transformers.trainer",
        "anisoscope.training.pretrain",
        "anisoscope.report.page.write",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "matplotlib.backends.backend_pdf",
        "matplotlib.pyplot",
    )
    for name in names:
        import_module(name)


def schedule(commands: list[str], seed: int) -> Iterator[tuple[str, random.Random]]:
    for number in range(10**9):
        yield commands[number % len(commands)], random.Random(f"{seed}-{number}")


def table(found: list[dict[str, Any]]) -> str:
    """Cases, kills and problems by command, as Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in found:
        for name in (line["command"], "all"):
            at_event = sum(1 for moment in line["moments"] if moment[1])
            counts[name].update(cases=1, kills=line["kills"], at=at_event, problems=bool(line["problems"]))
    rows = ["| command | cases | kills | drawn at a file event | ended otherwise |", "|---|---|---|---|---|"]
    order = [name for name in (*jobs.COMMANDS, "all") if name in counts]
    for name in order:
        c = counts[name]
        rows.append(f"| {name} | {c['cases']:,} | {c['kills']:,} | {c['at']:,} | {c['problems']:,} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--log", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/anisoscope-faults"))
    parser.add_argument("--commands", default=",".join(jobs.COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", action="store_true", help="Print the table of the log and end.")
    given = parser.parse_args()
    found = lines_of(given.log)
    if not given.summary:
        attack(given, found)
    print(table(found))
    return int(any(line["problems"] for line in found))


def attack(given: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Go on until the log holds as many kills as were asked for."""
    preload()
    shutil.rmtree(given.work, ignore_errors=True)
    world = jobs.make_world(given.work / "world", run)
    commands, wholes = given.commands.split(","), {}
    plan = schedule(commands, given.seed)
    for _ in found:
        next(plan)
    kills = sum(line["kills"] for line in found)
    for command, rng in plan:
        if kills >= given.kills:
            return
        if command not in wholes:
            wholes[command] = undisturbed(command, world, given.work / "whole" / command.replace(" ", "-"))
        try:
            line = case(command, world, wholes[command], given.work / "case", rng)
        except TimeoutError as error:
            line = {"command": command, "kills": 0, "moments": [], "problems": [str(error)]}
        found.append(line)
        kills += line["kills"]
        add_line(given.log, line)
        said = "; ".join(line["problems"]) or "same"
        print(f"{kills:5d} {command}: {line['kills']} kills, {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
