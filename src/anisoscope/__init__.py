"""anisoscope: an instrument for the geometry of neural representations.

The public names are those of `anisoscope.api` (one function for each study), `AnisotropyMonitor` and `Remedy`, found
on first use: importing this package imports nothing heavy.

>>> import anisoscope
>>> [name for name in dir(anisoscope) if name.startswith("v")]
['variants', 'vectors', 'vocabulary']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.api import (
        Measurement,
        Result,
        Run,
        attention,
        block,
        calibrate,
        compare,
        final_norm,
        intervene,
        measure,
        merge,
        null,
        open_run,
        remedy,
        report,
        sweep,
        variants,
        vectors,
        vocabulary,
    )
    from anisoscope.studies.remedy.estimator import Remedy
    from anisoscope.watch.monitor import AnisotropyMonitor

__version__ = "0.2.0"
__all__ = [
    "AnisotropyMonitor",
    "Measurement",
    "Remedy",
    "Result",
    "Run",
    "attention",
    "block",
    "calibrate",
    "compare",
    "final_norm",
    "intervene",
    "measure",
    "merge",
    "null",
    "open_run",
    "remedy",
    "report",
    "sweep",
    "variants",
    "vectors",
    "vocabulary",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "AnisotropyMonitor":
        return import_module("anisoscope.watch.monitor").AnisotropyMonitor
    if name == "Remedy":
        return import_module("anisoscope.studies.remedy.estimator").Remedy
    if name in __all__:
        return getattr(import_module("anisoscope.api"), name)
    if not name.startswith("_"):  # a study without a function of its own
        from anisoscope.runs.study import entries

        if name.replace("_", "-") in entries():
            return getattr(import_module("anisoscope.api"), name)
    raise AttributeError(f"module 'anisoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
