"""A series on disk: the checkpoints of one training, in the folder format of transformers. Finding one needs no torch.

    OUT/recipe.toml                     what was trained, and how
    OUT/seed-0/log.jsonl                losses by step
    OUT/seed-0/checkpoint-1024/         config.json, model.safetensors, tokenizer or image processor

The package carries one such series, a byte-level BERT at twelve steps of its training, for two seeds.

>>> sorted({seed for seed, _, _ in embedded_series()})
[0, 1]
>>> [step for seed, step, _ in embedded_series() if seed == 0][:4]
[0, 8, 16, 32]
"""

from __future__ import annotations

import re
from pathlib import Path

from anisoscope.errors import InputError

EMBEDDED = Path(__file__).parent.parent / "embedded_series"


def embedded_series() -> list[tuple[int, int, Path]]:
    """(seed, step, folder) of every checkpoint inside the package, by seed and step."""
    return find_series(EMBEDDED)


def find_series(out: str | Path) -> list[tuple[int, int, Path]]:
    """(seed, step, folder) of every checkpoint that `anisoscope pretrain` published in `out`, by seed and step."""
    found = []
    for folder in Path(out).glob("seed-*/checkpoint-*"):
        match = re.fullmatch(r"seed-(\d+)/checkpoint-(\d+)", f"{folder.parent.name}/{folder.name}")
        if match and (folder / "config.json").is_file():
            found.append((int(match[1]), int(match[2]), folder))
    if not found:
        raise InputError(
            "no checkpoint found",
            where=out,
            expected="folders like seed-0/checkpoint-1024",
            do="run anisoscope pretrain",
        )
    return sorted(found)
