"""Small jobs for every command, as a person would give them, and ways to run, kill and compare them.

The models have random weights, the texts a few lines; whatever is tested with them is tested on the real command line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import zoo

SOURCE = Path(__file__).parent.parent / "src"
SMALL = ("--no-figures", "--batch-tokens", "40", "--dtype", "float64")
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}
COMMANDS = ("vectors", "calibrate", "measure", "attention", "sweep", "final-norm")


def make_world(folder: Path) -> Path:
    """Two models, a series of two checkpoints, texts and vectors in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    zoo.save("gpt2", folder / "gpt2")
    zoo.save("bert", folder / "bert")
    for step in (0, 8):
        zoo.save("bert", folder / "series" / f"checkpoint-{step}", seed=step)
    lines = [f"Line {k} drifts {'a little further ' * (k % 5)}away." for k in range(24)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_vectors(folder / "vectors.parquet")
    return folder


def write_documents(folder: Path, count: int) -> Path:
    """Short texts, a file for each."""
    for k in range(count):
        text = f"Document number {k} drifts a little {'further ' * (k % 5)}away."
        (folder / f"{k:02}.txt").write_text(text, encoding="utf-8")
    return folder


def write_vectors(path: Path, *, rows: int = 3000, seed: int = 0) -> None:
    """Drifted vectors of documents of ten rows, in chunks of a hundred."""
    x = np.random.default_rng(seed).standard_normal((rows, 12)) * np.linspace(0.3, 2, 12) + 0.5
    names = [f"document {k // 10}" for k in range(rows)]
    pq.write_table(pa.table({"x": list(x.astype(np.float32)), "document": names}), path, row_group_size=100)


def words_of(command: str, world: Path) -> list[str]:
    """The words of a command on the things of a world, without --out."""
    text = ["--data", str(world / "texts.txt"), "--documents", "lines"]
    vectors = [str(world / "vectors.parquet"), "--column", "x", "--group", "document"]
    return {
        "vectors": ["vectors", *vectors, "--no-neighbours"],
        "calibrate": ["calibrate", *vectors, "--no-figures"],
        "measure": ["measure", str(world / "gpt2"), str(world / "bert"), *text, "--no-neighbours", *SMALL],
        "attention": ["attention", str(world / "gpt2"), *text, *SMALL],
        "sweep": ["sweep", str(world / "series"), *text, *SMALL],
        "final-norm": ["final-norm", str(world / "gpt2"), *text, *SMALL],
    }[command]


def grid(folder: Path) -> list[str]:
    """The words of a grid of three tiny trainings, one of which diverges, without --out."""
    (folder / "text").write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 300)
    (folder / "plan.toml").write_text(
        f"data = ['{folder / 'text'}']\ntexts = ['{folder / 'text'}']\nsteps = 2\nseeds = [0]\nlimit = 3\n"
        "recipe = {layers = 1, hidden = 16, heads = 2, length = 32, batch = 4, validation_batches = 2}\n"
        "[arms.softmax]\n[arms.no_bias]\nattention = 'no_bias'\n"
        "[arms.lost]\ninitializer_range = 1e30\n"
    )
    return ["variants", "--plan", str(folder / "plan.toml"), "--threads", "1"]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


PRELOAD = (
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.bert.modeling_bert",
    "transformers.tokenization_utils_fast",
    "scipy.stats",
    "anisoscope.models.open",
    "anisoscope.studies.sweep.checkpoints",
    "anisoscope.report.terminal",
    "anisoscope.cli.study",
    "anisoscope.cli.main",
    "anisoscope.studies.vectors",
    "anisoscope.inputs.text",
    "rich.table",
)
_FRESH = multiprocessing.get_context("forkserver")  # processes of their own that need not import torch again
_FRESH.set_forkserver_preload([*PRELOAD, "cases"])


def run(
    *words: object, signal_: int = 0, after: int = 0, event: int = 0, env: Mapping[str, str] | None = None
) -> Ended:
    """A command in a process of its own, to its end.

    With `signal_` the process receives this real signal right after it saved its state for the `after`-th time, or
    right before its `event`-th change of a file.
    """
    (ended,) = run_together([Start(words, signal_, after, event, env or {})])
    return ended


class Start(NamedTuple):
    """A command to start; see `run`. With `code`, a program of Python whose arguments the words are."""

    words: Sequence[object]
    signal_: int = 0
    after: int = 0
    event: int = 0
    env: Mapping[str, str] = {}
    code: str = ""


def run_code(code: str, *words: object) -> Ended:
    """A program in a process of its own, to its end."""
    (ended,) = run_together([Start(words, code=code)])
    return ended


def run_ranks(words: Sequence[object], *, processes: int, dies: int = -1, after: int = 2) -> list[Ended]:
    """A command in several processes with the environment that `torchrun` would give them, which spares its own start.

    The rank `dies` is killed after it saved its state for the `after`-th time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    starts = [
        Start(
            words,
            signal.SIGKILL if rank == dies else 0,
            after,
            env={**{name: str(value) for name, value in shared.items()}, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            | ({"ANISOSCOPE_SAVE_EVERY": "0"} if dies >= 0 else {}),
        )
        for rank in range(processes)
    ]
    return run_together(starts)


def run_together(starts: Sequence[Start]) -> list[Ended]:
    """Commands in processes of their own, at the same time, to their ends."""
    with TemporaryDirectory() as folder:
        processes = []
        for number, (words, signal_, after, event, env, code) in enumerate(starts):
            streams = f"{folder}/{number}"
            given = (streams, [*map(str, words)], signal_, after, event, dict(env), code)
            process = _FRESH.Process(target=_child, args=given)
            process.start()
            processes.append((process, streams))
        ended = []
        for process, streams in processes:
            process.join(120)
            assert process.exitcode is not None, "it hangs"
            said = (Path(f"{streams}.{name}").read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
            ended.append(Ended(process.exitcode, *said))
    return ended


def start(*words: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A command in a process of its own that goes on beside the test."""
    given = [sys.executable, "-m", "anisoscope", *map(str, words)]
    return subprocess.Popen(
        given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**(env or {}))
    )


def environment(**extra: str) -> dict[str, str]:
    """That of a process of the tree under test, on one thread."""
    path = os.pathsep.join([str(SOURCE), str(Path(__file__).parent)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **extra}


def _child(streams: str, words: list[str], number: int, after: int, event: int, env: dict[str, str], code: str) -> None:
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{streams}.{name}", os.O_WRONLY | os.O_CREAT), stream)
    import torch

    from anisoscope.cli.main import main

    os.environ.update(env)
    torch.set_num_threads(1)
    if event:
        on_change(lambda count: os.kill(os.getpid(), number) if count == event else None)
    elif number:
        os.environ["ANISOSCOPE_SAVE_EVERY"] = "0"
        _strike(number, after)
    sys.argv = ["anisoscope", *words]
    exec(code, {}) if code else main()


def on_change(act: Callable[[int], object]) -> None:
    """From now on, call `act` with 1, 2, … before this process opens a file for writing, renames or removes one …"""
    count = 0

    def hook(name: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        writes = name == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or name in _CHANGES:
            count += 1
            act(count)

    sys.addaudithook(hook)


def _strike(number: int, after: int) -> None:
    """From now on, the `after`-th saving of an unfinished state is followed by a signal to this process."""
    from anisoscope.runs.work.saved import Saved

    count, save = [0], Saved.save

    def counted(self: Saved, tensors: Any) -> None:
        save(self, tensors)
        count[0] += not self.finished
        if count[0] == after and not self.finished:
            os.kill(os.getpid(), number)

    Saved.save = counted


def states(folder: Path) -> list[dict[str, Any]]:
    """The headers of what an unfinished run has saved."""
    found = [json.loads(path.read_text()) for path in sorted((folder / "partial").rglob("*.json"))]
    return [header for header in found if header["done"] > 0]


def table(folder: Path) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """The rows of a run by what they are of."""
    rows = pq.read_table(folder / "measurements.parquet").to_pylist()
    names = ("model", "step", "seed", "site", "head", "metric", "positions", "at")
    found = {tuple(row[name] for name in names): row for row in rows}
    assert len(found) == len(rows) > 0
    return found


def assert_same(one: Path, other: Path, *, within: float = 1e-12) -> None:
    """Two runs hold the same rows, and the same numbers to this relative precision."""
    mine, theirs = table(one), table(other)
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        assert row["n"] == theirs[key]["n"], key
        for name in ("value", "low", "high", "null"):
            a, b = row[name], theirs[key][name]
            assert (a is None) == (b is None), (key, name, a, b)
            assert a is None or abs(a - b) <= within * max(1, abs(a), abs(b)), (key, name, a, b)


def wait_for(what: Any, *, seconds: float = 60) -> None:
    """Wait until `what()` holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
