"""Short jobs of every command that writes something, and what it means that two of them ended alike."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

import cases
import zoo

_TRAINING = ("--layers", 1, "--hidden", 16, "--heads", 2, "--length", 16, "--batch", 2, "--save-every", 2)
_FIELDS = ("layers=1", "heads=2", "length=32", "batch=2", "validation_batches=1", "save_every=2")
EXTRA = ("merge", "figures", "report", "compare", "remedy fit", "remedy apply", "intervene", "vocabulary", "null")
COMMANDS = (*cases.COMMANDS, *EXTRA, "gate", "advise", "block", "run", "pretrain", "variants")


def make_world(folder: Path, run: Callable[..., cases.Ended]) -> Path:
    """The things of `cases.make_world`, a language model, and runs for the commands that read runs."""
    import torch
    import transformers

    cases.make_world(folder)
    cases.write_vectors(folder / "few.parquet", rows=400)
    (folder / "book.txt").write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 60)
    (folder / "arms.toml").write_text("[narrow]\nhidden = 8\n[wide]\nhidden = 16\n")
    zoo.save("gpt2", folder / "lm")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder / "lm")
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "lm")
    for words, name in _prepared(folder):
        ended = run(*words, "--out", folder / name)
        assert ended.code == 0, ended.err
    return folder


def _prepared(world: Path) -> Iterator[tuple[list[Any], str]]:
    for shard in (0, 1):
        yield [*cases.words_of("final-norm", world), "--shard", f"{shard}/2"], f"shard-{shard}"
    for seed in (0, 1):
        yield [*cases.words_of("vectors", world), "--seed", seed], f"run-{seed}"
    yield ["remedy", "fit", *_few(world), "--method", "whiten", "--no-figures"], "remedy"


def _few(world: Path) -> list[Any]:
    return [world / "few.parquet", "--column", "x", "--group", "document"]


def words_of(command: str, world: Path) -> list[Any]:
    """The words of a command on the things of a world, without --out."""
    if command in cases.COMMANDS:
        return [*cases.words_of(command, world)]
    text = ["--data", world / "texts.txt", "--documents", "lines"]
    block = ["--norms", "0,2", "--seeds", 1, "--sequences", 1, "--length", 12, "--no-figures"]
    book, recipe = ["--data", world / "book.txt"], [f"--recipe={field}" for field in _FIELDS]
    return {
        "merge": ["merge", world / "shard-0", world / "shard-1", "--existing", "resume"],
        "figures": ["calibrate", *_few(world)],
        "report": ["report", world / "run-0", world / "run-1"],
        "compare": ["compare", world / "run-0", world / "run-1", "--no-figures"],
        "remedy fit": ["remedy", "fit", *_few(world), "--no-figures"],
        "remedy apply": ["remedy", "apply", world / "remedy", world / "few.parquet", "--column", "x", "--force"],
        "intervene": ["intervene", world / "lm", *text, "--what", "mean_query", "--limit", 8, "--no-figures"],
        "vocabulary": ["vocabulary", world / "lm", "--no-figures"],
        "null": ["null", "--dim", 12, "--n", 500, "--no-figures"],
        "gate": ["gate", world / "few.parquet", world / "few.parquet", "--column", "x", "--no-figures"],
        "advise": ["advise", *_few(world), "--no-figures"],
        "block": ["block", "--arch", world / "bert", *block],
        "run": ["run", world / "run-0", "--no-figures"],
        "pretrain": ["pretrain", *book, "--steps", 8, *_TRAINING, "--first-checkpoint", 2],
        "variants": _variants(world, [*book, *recipe]),
    }[command]


def _variants(world: Path, given: list[Any]) -> list[Any]:
    texts = ["--texts", world / "texts.txt", "--limit", 4, "--plan", world / "arms.toml"]
    return ["variants", *given, *texts, "--seeds", "0", "--steps", 4, "--no-figures"]


def out_of(command: str, folder: Path) -> Path:
    """What --out names: a file or the folder of a run."""
    return folder / {"report": "page.html", "remedy apply": "repaired.parquet"}.get(command, "run")


# -- alike ---------------------------------------------------------------------------------------------------------


def differences(one: Path, other: Path, *, within: float = 1e-12) -> list[str]:
    """What two folders of finished work do not have in common, but for times and names of folders."""
    mine, theirs = files_of(one), files_of(other)
    found = [
        f"only in {where}: {name}" for where, a, b in (("one", mine, theirs), ("other", theirs, mine)) for name in a - b
    ]
    for name in sorted(mine & theirs):
        try:
            if not _alike(one / name, other / name, within):
                found.append(f"not alike: {name}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {error}")
    return found


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _alike(one: Path, other: Path, within: float) -> bool:
    if one.suffix == ".parquet":
        return close(pq.read_table(one).to_pylist(), pq.read_table(other).to_pylist(), within)
    if one.suffix == ".safetensors":
        mine, theirs = load_file(one), load_file(other)
        return mine.keys() == theirs.keys() and all(_near(mine[name], theirs[name], within) for name in mine)
    if one.name == "manifest.json":
        mine, theirs = (json.loads(path.read_text()) for path in (one, other))
        return all(close(mine.get(name), theirs.get(name), within) for name in ("verdict", "rows", "notes", "settings"))
    if one.suffix in (".html", ".toml"):
        return abs(os.path.getsize(one) - os.path.getsize(other)) < 64  # names of folders
    mine, theirs = os.path.getsize(one), os.path.getsize(other)
    return mine > 0 and abs(mine - theirs) < 0.02 * theirs  # pictures: half a file is not alike


def close(one: Any, other: Any, within: float) -> bool:
    """Whether two values out of JSON or a table are the same, numbers to this relative precision."""
    if isinstance(one, dict):
        return isinstance(other, dict) and close(sorted(one.items()), sorted(other.items()), within)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(close(a, b, within) for a, b in pairs)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other) or abs(one - other) <= within * max(1, abs(one))
    return one == other


def _near(one: np.ndarray, other: np.ndarray, within: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    return bool(np.allclose(one, other, rtol=within, atol=within, equal_nan=True))
