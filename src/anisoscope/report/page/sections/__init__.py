"""The arrays behind the sections of the page, thinned to what a page can show.

A section is one script, `assets/sections/<name>.js`. Where it draws arrays, a module of the same name here has

    pictures(run, arrays)    what the script draws of one run, as JSON-ready mappings
    once(pictures, runs)     optional: without those that another section draws of the same data
    thin(pictures)           optional: drop detail, in place, where all runs together would be too much to mail

and the script reads the result as `data.pictures.<name>`, each with the number of its run. The names of arrays are
those of `anisoscope.runs.array_names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from anisoscope.runs.store import Run


def names() -> list[str]:
    """The sections that draw arrays."""
    return sorted(module.name for module in iter_modules(__path__))


def pictures(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """What every section draws, by section."""
    modules = {name: import_module(f"{__name__}.{name}") for name in names()}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in modules}
    for number, run in enumerate(runs):
        arrays = run.arrays()
        for name, module in modules.items():
            found[name] += [{"run": number, **picture} for picture in module.pictures(run, arrays)]
    for name, module in modules.items():
        if hasattr(module, "once"):
            found[name] = module.once(found[name], runs)
        if hasattr(module, "thin"):
            module.thin(found[name])
    return found
