"""anisoscope: an instrument for the geometry of neural representations.

The public names are those of `anisoscope.api` (one function for each study), `AnisotropyMonitor` and `Remedy`, found
on first use: importing this package imports nothing heavy.

>>> import anisoscope
>>> [name for name in dir(anisoscope) if name.startswith("v")]
['variants', 'vectors', 'vocabulary']
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.api import (
        Measurement,
        Result,
        Run,
        advise,
        attention,
        block,
        calibrate,
        compare,
        final_norm,
        gate,
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
    "advise",
    "attention",
    "block",
    "calibrate",
    "compare",
    "final_norm",
    "gate",
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
    if name == "AnisotropyMonitor":
        return import_module("anisoscope.watch.monitor").AnisotropyMonitor
    if name == "Remedy":
        return import_module("anisoscope.studies.remedy.estimator").Remedy
    if name in __all__:
        return getattr(import_module("anisoscope.api"), name)
    if not name.startswith("_"):  # a study without a function of its own
        from anisoscope.runs.finding import entries

        if name.replace("_", "-") in entries():
            return getattr(import_module("anisoscope.api"), name)
    raise AttributeError(f"module 'anisoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Part(ModuleType):
    """A subpackage that shares its name with a public function (`report`): calling it calls the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module("anisoscope.api"), self.__name__.rpartition(".")[2])(*arguments, **options)


class _Package(ModuleType):
    """This package: the import system puts subpackages into it, and must not take a function away."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in __all__:
            value.__class__ = _Part
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
