"""Runs made up on the spot: rows and arrays without a folder, as far as checks look at them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks.evidence import Evidence


@dataclass
class Made:
    """What a check may ask of a run."""

    made: list[Row] = field(default_factory=list)
    held: dict[str, np.ndarray] = field(default_factory=dict)
    command: str = "measure"

    def rows(self, **wanted: Any) -> list[Row]:
        return [row for row in self.made if all(getattr(row, name) == value for name, value in wanted.items())]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.held


def evidence(
    rows: list[Row], arrays: dict[str, np.ndarray] | None = None, group: str = "tokens", **more: Any
) -> Evidence:
    return Evidence([(group, Made(rows, arrays or {}))], **more)  # type: ignore[list-item]


def cosine(site: str, value: float, *, model: str = "m", width: float = 0.01, **more: Any) -> Row:
    about = {"metric": "mean_cosine", **more}
    return Row(model=model, site=site, value=value, low=value - width, high=value + width, **about)


def layers(model: str, values: Any, *, d: int = 768, drift: Any = None) -> list[Row]:
    """A model's blocks with their cosines, dimensions and, if given, drift norms."""
    rows = []
    for i, value in enumerate(values):
        rows += [cosine(f"block.{i}", float(value), model=model, layer=i)]
        rows += [Row(model=model, site=f"block.{i}", metric="dimension", value=float(d), layer=i)]
        if drift is not None:
            rows += [Row(model=model, site=f"block.{i}", metric="drift_norm", value=float(drift[i]), layer=i)]
    return rows


def means(query: np.ndarray, key: np.ndarray, *, seed: int = 0, steps: Any = None) -> dict[str, np.ndarray]:
    """Arrays of a sweep from mean queries and keys (layers, steps, heads, d)."""
    arrays = {f"seed-{seed}/steps": np.arange(query.shape[1]) if steps is None else np.array(steps)}
    for i in range(len(query)):
        arrays |= {f"seed-{seed}/block.{i}/query_mean": query[i], f"seed-{seed}/block.{i}/key_mean": key[i]}
    return arrays
