"""The metrics that studies compute themselves, and their nulls with them: attention, blocks, thresholds, trainings …

`studies.toml` has one line for each: name, label, meaning, range, unit.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from anisoscope.inference.metrics.declaration import Metric


def _declared(name: str, group: str, label: str, meaning: str, bounds: str = "", unit: str = "") -> Metric:
    """One line of the table.

    >>> _declared("loss", "training", "loss", "Average loss.", "0..", "nats").high is None
    True
    """
    low, _, high = bounds.partition("..")
    return Metric(name, label, meaning, group, float(low) if low else None, float(high) if high else None, unit)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STUDIES = tuple(_declared(name, group, *line) for group, lines in _TABLE.items() for name, line in lines.items())
