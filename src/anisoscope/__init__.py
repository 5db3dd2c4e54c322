"""anisoscope: an instrument for the geometry of neural representations.

The public names are those of `anisoscope.api`, and `AnisotropyMonitor`, found on first use: importing this package
imports nothing heavy.

>>> import anisoscope
>>> sorted(name for name in dir(anisoscope) if name.startswith("measure"))
['measure', 'measure_vectors']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.api import Measurement, Run, calibrate, compare, measure, measure_vectors, open_run
    from anisoscope.watch.monitor import AnisotropyMonitor

__version__ = "0.1.0"
__all__ = [
    "AnisotropyMonitor", "Measurement", "Run", "calibrate", "compare", "measure", "measure_vectors", "open_run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        place = "anisoscope.watch.monitor" if name == "AnisotropyMonitor" else "anisoscope.api"
        return getattr(import_module(place), name)
    raise AttributeError(f"module 'anisoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
