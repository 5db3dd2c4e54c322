"""A series on disk: the checkpoints of one training, in the folder format of transformers. Finding one needs no torch.

    OUT/recipe.toml                     what was trained, and how
    OUT/seed-0/log.jsonl                losses by step
    OUT/seed-0/checkpoint-1024/         config.json, model.safetensors, tokenizer or image processor

The package carries one such series, a byte-level BERT at twelve steps of its training, for two seeds; the wheel has
seed 0 alone, to be half as large.

>>> sorted({seed for seed, _, _ in embedded_series()})
[0, 1]
>>> [step for seed, step, _ in embedded_series() if seed == 0][:4]
[0, 8, 16, 32]
"""

from __future__ import annotations

from pathlib import Path

from anisoscope.models.checkpoints import open_series

EMBEDDED = Path(__file__).parent.parent / "embedded_series"


def embedded_series() -> list[tuple[int, int, Path]]:
    """(seed, step, folder) of every checkpoint inside the package, by seed and step."""
    return find_series(EMBEDDED)


def find_series(out: str | Path) -> list[tuple[int, int, Path]]:
    """(seed, step, folder) of every checkpoint that `anisoscope pretrain` published in `out`, by seed and step."""
    found = open_series(out).checkpoints
    return [(one.seed, one.step, Path(one.model)) for one in found if one.seed is not None]
