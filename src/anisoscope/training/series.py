"""The log that a training leaves beside its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anisoscope.runs.table import Row


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
