"""A series on disk: the checkpoints of one training, in the folder format of transformers. Nothing here needs torch.

    OUT/recipe.toml                     what was trained, and how
    OUT/seed-0/log.jsonl                losses by step
    OUT/seed-0/checkpoint-1024/         config.json, model.safetensors, tokenizer or image processor

The package carries one such series, a byte-level BERT at twelve steps of its training, for two seeds.

>>> sorted({seed for seed, _, _ in embedded_series()})
[0, 1]
>>> [step for seed, step, _ in embedded_series() if seed == 0][:4]
[0, 16, 32, 64]
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.runs.table import Row

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


def read_log(out: str | Path, seed: int) -> list[dict[str, Any]]:
    """The training log of one seed: one record per logged step."""
    lines = (Path(out) / f"seed-{seed}" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def log_rows(out: str | Path, seed: int) -> list[Row]:
    """The training log of one seed as measurements, in nats where they are losses."""
    return [
        Row(model=Path(out).name, step=record["step"], seed=seed, metric=name, value=value)
        for record in read_log(out, seed)
        for name, value in record.items()
        if name != "step"
    ]
