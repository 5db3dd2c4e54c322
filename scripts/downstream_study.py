"""Does anisotropy cost anything? Linear probes on frozen states, for every training of a grid and along the series.

    python scripts/downstream_study.py variants enwik8 docs/studies

Three tasks with labels that nobody made for them, on windows of 64 bytes that no training saw:

- `code`: Python source of the standard library, or English prose (`pydoc_data.topics`); mean state of a window;
- `topic`: which of the eight longest topics of `pydoc_data` a window is from; mean state of a window;
- `link`: whether a byte of the held-out end of enwik8 stands inside a [[link]]; the state at that byte, one per window.

Each probe is a logistic regression on standardised states, fitted on half of the windows and scored on the other half
by balanced accuracy. Writes tables/downstream.csv: one line per training, site and task, with the average cosine there;
and tables/downstream-series.csv: the same for every checkpoint of the embedded series. What a table has is not probed
again.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisoscope.models.open import open_model
from anisoscope.training.data.bytes import FIRST_BYTE

LENGTH = 64
STEP = 600
SERIES = Path(__file__).resolve().parents[1] / "src" / "anisoscope" / "embedded_series"
Task = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # windows (n, LENGTH) of ids, labels, positions of the states


def windows(text: bytes, count: int) -> np.ndarray:
    """`count` windows, evenly over a text."""
    data = np.frombuffer(text, dtype=np.uint8)
    starts = np.linspace(0, len(data) - LENGTH, count).astype(int)
    return np.stack([data[start : start + LENGTH] for start in starts]).astype(np.int64) + FIRST_BYTE


def code_or_prose(count: int) -> Task:
    import argparse
    import inspect
    import pickletools
    from pydoc_data.topics import topics

    code = (inspect.getsource(argparse) + inspect.getsource(pickletools)).encode()
    prose = "".join(topics.values()).encode()
    return np.concatenate((windows(code, count), windows(prose, count))), np.repeat([0, 1], count), None


def topic(count: int) -> Task:
    from pydoc_data.topics import topics

    longest = sorted(topics.values(), key=len)[-8:]
    return np.concatenate([windows(one.encode(), count) for one in longest]), np.repeat(range(8), count), None


def link(enwik8: Path, count: int) -> Task:
    """As many bytes inside links as outside, each at the end of the first half of its window or later."""
    with enwik8.open("rb") as file:
        file.seek(-2_000_000, 2)
        text = file.read()
    data, inside = np.frombuffer(text, dtype=np.uint8), np.zeros(len(text), bool)
    start = text.find(b"[[")
    while start >= 0 and (end := text.find(b"]]", start)) >= 0:
        inside[start + 2 : end] = True
        start = text.find(b"[[", end)
    draw = np.random.default_rng(0)
    chosen = [draw.choice(np.flatnonzero(inside[LENGTH:] == kind), count, replace=False) + LENGTH for kind in (0, 1)]
    position = draw.integers(LENGTH // 2, LENGTH, 2 * count)
    starts = np.concatenate(chosen) - position
    ids = np.stack([data[s : s + LENGTH] for s in starts]).astype(np.int64) + FIRST_BYTE
    return ids, np.repeat([0, 1], count), position


def states(module: Any, task: Task) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The states of a task at every site (means of windows, or those at a position), and the average cosine there."""
    ids, _, positions = task
    blocks = [f"block.{k}" for k in range(module.config.num_hidden_layers)]
    names = ("embeddings", *blocks[:-1], "final_norm" if module.config.model_type == "gpt2" else blocks[-1])
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    units = {name: np.zeros(module.config.hidden_size) for name in names}
    for start in range(0, len(ids), 256):
        some = slice(start, start + 256)
        with torch.inference_mode():
            seen = module(input_ids=torch.tensor(ids[some]), output_hidden_states=True).hidden_states
        for name, hidden in zip(names, seen, strict=True):
            kept = hidden.mean(1) if positions is None else hidden[range(len(hidden)), positions[some]]
            found[name].append(kept.double().numpy())
            units[name] += torch.nn.functional.normalize(hidden.double(), dim=-1).sum((0, 1)).numpy()
    n = ids.size
    cosines = {name: float((total @ total - n) / (n * (n - 1))) for name, total in units.items()}
    return {name: np.concatenate(parts) for name, parts in found.items()}, cosines


def accuracy(x: np.ndarray, labels: np.ndarray) -> float:
    """Balanced accuracy of a logistic regression, fitted on the even windows and scored on the odd ones."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    x = (x - x[::2].mean(0)) / x[::2].std(0).clip(1e-9)
    probe = LogisticRegression(max_iter=300).fit(x[::2], labels[::2])
    return float(balanced_accuracy_score(labels[1::2], probe.predict(x[1::2])))


def main(grid: Path, enwik8: Path, docs: Path) -> None:
    torch.set_num_threads(1)
    tasks = {"code": code_or_prose(400), "topic": topic(120), "link": link(enwik8, 500)}
    trainings = {one.parts[-3:-1]: one for one in sorted(grid.glob(f"training/*/seed-*/checkpoint-{STEP}"))}
    series = {one.parts[-2:]: one for one in sorted(SERIES.glob("seed-*/checkpoint-*"))}
    fill(docs / "tables" / "downstream.csv", ("arm", "seed"), trainings, tasks)
    fill(docs / "tables" / "downstream-series.csv", ("seed", "step"), series, tasks)


def fill(table: Path, place: tuple[str, str], checkpoints: dict[Any, Path], tasks: dict[str, Task]) -> None:
    """Probe the checkpoints that a table does not have; a checkpoint is named by two parts of its path."""
    known = {tuple(line.split(",")[:2]) for line in table.read_text().splitlines()} if table.exists() else set()
    with table.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow([*place, "site", "task", "accuracy", "mean_cosine"])
        for parts, checkpoint in checkpoints.items():
            named = tuple(part.removeprefix("seed-").removeprefix("checkpoint-") for part in parts)
            if named not in known:
                writer.writerows(probed(open_model(str(checkpoint)).module, tasks, named))
                file.flush()
                print(*named, flush=True)


def probed(module: Any, tasks: dict[str, Task], place: tuple[str, ...]) -> list[list[str]]:
    """The lines of one checkpoint: every task at every site."""
    lines = []
    for name, task in tasks.items():
        found, cosines = states(module, task)
        lines += [
            [*place, site, name, f"{accuracy(x, task[1]):.4f}", f"{cosines[site]:.4f}"] for site, x in found.items()
        ]
    return lines


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
