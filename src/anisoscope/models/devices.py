"""Where a model runs, and where its sums are kept.

Sums are float64. Apple's `mps` has no float64, so there the model runs on `mps` and the sums are kept on the CPU.
"""

from __future__ import annotations

from anisoscope.errors import UsageError


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
