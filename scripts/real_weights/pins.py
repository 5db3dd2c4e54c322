"""The packages of `pins.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from real_weights.packages import Package

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def pinned(*names: str) -> tuple[Package, ...]:
    """The packages of these names, all parts of each."""
    return tuple(Package(*line) for name in names for line in _TABLE[name])
