"""Where a model runs, and where its sums are kept.

A model that is too large for one device is spread over several (`parse_device_map`), or left on disk in part;
accelerate moves what each module needs. The sums of a layer live where its states are made.

Sums are float64. Apple's `mps` has no float64, so there the model runs on `mps` and the sums are kept on the CPU.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anisoscope.errors import MissingExtra, UsageError

MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def check_device(device: str) -> str:
    """The device, if a tensor can be made there; else an error that says so before anything is loaded."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        lines = str(error).strip().splitlines()
        reason = f"{device} ({lines[0]})" if lines else device
        raise UsageError("this device cannot be used", got=reason, expected=_present(), do="--device cpu") from error
    return device


def parse_device_map(written: str | None) -> dict[str, Any]:
    """The argument for transformers: none, one of its words, or modules and devices from JSON, as text or in a file.

    >>> parse_device_map(None)
    {}
    """
    if written is None:
        return {}
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", needed_for="a device map", extra="large")
    offload = {"offload_folder": os.environ.get("ANISOSCOPE_OFFLOAD", "offload")}
    if written in MAPS:
        return {"device_map": written, **offload}
    try:
        text = written if written.lstrip().startswith("{") else Path(written).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as problem:
        expected = " | ".join((*MAPS, "JSON"))
        raise UsageError("not a device map", where=written[:80], got=problem, expected=expected) from problem
    if not isinstance(found, dict) or not all(isinstance(device, str | int) for device in found.values()):
        raise UsageError(
            "not a device map", where=written[:80], expected='{"module": "device", …}, "" for all the rest'
        )
    return {"device_map": found, **offload}


def sums_device(device: str) -> str:
    """Where float64 sums over states of that device are kept.

    >>> sums_device("mps"), sums_device("cpu")
    ('cpu', 'cpu')
    """
    kind = device.partition(":")[0]
    return "cpu" if kind == "mps" else check_device(device)


def _present() -> str:
    """The devices of this machine, in words."""
    import torch

    found = ["cpu"]
    found += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    found += ["mps"] if torch.backends.mps.is_available() else []
    return " | ".join(found)
