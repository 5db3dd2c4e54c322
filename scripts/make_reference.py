"""Write docs/reference from the code: commands, functions, columns and metrics, plans, file formats.

    python scripts/make_reference.py             # write the pages
    python scripts/make_reference.py --check     # exit code 1 if a page differs from what the code says

A test runs the check, so the reference cannot go stale. What stands in this file is the frame: which modules make a
page, in which order. `reference_words` has the meaning of columns and tensors that no docstring tells.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import reference_words as words
from reference_commands import commands_page
from reference_text import definition, described, markdown, public, table, tree

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
GENERATED = "<!-- Written by scripts/make_reference.py from the code: change the code, then run it again. -->"

PUBLIC = (
    ("anisoscope.api", ("measure",)),
    ("anisoscope.studies.vectors", ("measure_vectors",)),
    ("anisoscope.api", ("compare", "calibrate")),
    ("anisoscope.runs.store", ("open_run", "Run")),
    ("anisoscope.runs.measurement", ("Measurement",)),
    ("anisoscope.watch.monitor", ("AnisotropyMonitor", "Band")),
)
BELOW = {
    "Sums": (
        ("anisoscope.accumulate.moments", ("Moments",)),
        ("anisoscope.accumulate.sums", ("Sums",)),
        ("anisoscope.accumulate.keys", ("sequence_key", "sequence_keys", "group_of")),
        ("anisoscope.runs.engine", ("join_states", "split_states")),
    ),
    "From sums to numbers": (
        ("anisoscope.inference.cloud", ("measure_cloud", "Cloud")),
        ("anisoscope.inference.estimates", ("Estimate",)),
        ("anisoscope.inference.verdict", ("Verdict", "verdict")),
        ("anisoscope.inference.jackknife", ("jackknife", "jackknife_of")),
        ("anisoscope.inference.bootstrap", ("bootstrap", "sequence_weights")),
        ("anisoscope.inference.correlation", ("correlate", "Correlation")),
        ("anisoscope.runs.measurement", ("cloud_rows",)),
    ),
    "Models, data, sites": (
        ("anisoscope.models.open", ("open_model", "OpenModel")),
        ("anisoscope.models.checkpoints", ("open_series", "Series")),
        ("anisoscope.inputs.sources", ("open_source", "Document", "Clip")),
        ("anisoscope.inputs.vectors.source", ("open_vectors",)),
        ("anisoscope.capture.sites", ("find_sites", "Site")),
        ("anisoscope.capture.hidden", ("HiddenCapture",)),
    ),
    "Tables and pages": (
        ("anisoscope.runs.table", ("Row", "schema", "to_table", "from_table")),
        ("anisoscope.runs.store", ("write_run",)),
        ("anisoscope.report.page.write", ("write_page",)),
    ),
    "Errors": (
        (
            "anisoscope.errors",
            ("AnisoscopeError", "UsageError", "InputError", "ModelError", "StoreError", "MissingExtra"),
        ),
    ),
}
GEOMETRY = (
    "cosine", "drift", "spectrum", "partition", "uniformity", "neighbours", "pairs", "outliers", "directional",
    "queries_keys", "corrections", "null", "wishart",
)  # fmt: skip


def api_page() -> str:
    """The public names, then what they are made of."""
    parts = [
        "# Python",
        "`import anisoscope` imports nothing heavy; these names are found on first use.",
        markdown(_docstring("anisoscope.api")),
        *_definitions(PUBLIC),
    ]
    for title, modules in BELOW.items():
        parts += [f"## {title}", *_definitions(modules, level=3, located=True)]
    return "\n\n".join(parts)


def _definitions(modules: Sequence[tuple[str, Sequence[str]]], *, level: int = 2, located: bool = False) -> list[str]:
    found = []
    for module, names in modules:
        if located:
            found.append(f"From `{module}`:")
        found += [described(definition(module, name), level=level) for name in names]
    return found


def geometry_page() -> str:
    """Every function of `anisoscope.geometry`, file by file."""
    parts = ["# Geometry", markdown(_docstring("anisoscope.geometry"))]
    for name in GEOMETRY:
        module = f"anisoscope.geometry.{name}"
        parts += [f"## `{module}`", markdown(_docstring(module))]
        parts += [described(node, level=3) for node in public(tree(module))]
    return "\n\n".join(parts)


def table_page() -> str:
    """The columns of the tidy table, and the metrics that have a name."""
    from anisoscope.inference.metrics import GROUPS, METRICS
    from anisoscope.runs.table import COLUMNS, schema

    kinds = {field.name: str(field.type) for field in schema()}
    columns = [(f"`{name}`", f"`{kinds[name]}`", words.COLUMN_MEANINGS[name]) for name in COLUMNS]
    parts = [
        "# The tidy table",
        words.TABLE,
        table(("column", "type", "meaning"), columns),
        "## Metrics",
        words.METRICS,
    ]
    for group in GROUPS:
        shown = [m for m in METRICS.values() if m.group == group]
        rows = [(f"`{m.name}`", m.label, m.meaning, _range(m.low, m.high), m.unit) for m in shown]
        parts += [f"### {group.capitalize()}", table(("metric", "label", "meaning", "range", "unit"), rows)]
    parts += ["### Families", markdown(_docstring("anisoscope.inference.metrics.families"))]
    parts += ["## Metrics of attention", markdown(_docstring("anisoscope.studies.attention.rows"))]
    return "\n\n".join(parts)


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None and high is None else " … ".join("" if end is None else f"{end:g}" for end in (low, high))


def plans_page() -> str:
    """What each study does, and the settings that its run.toml may hold."""
    from anisoscope.studies.plans import STUDIES
    from anisoscope.training.recipe import Recipe

    parts = ["# Studies and plans", words.PLANS]
    for command, (module, settings, _) in STUDIES.items():
        full = f"anisoscope.studies.{module}"
        fields = getattr(import_module(full), settings).model_fields
        parts += [f"## `{command}`", markdown(_docstring(full)), _settings(fields)]
    parts += ["## `recipe.toml`", markdown(_docstring("anisoscope.training.recipe")), _settings(Recipe.model_fields)]
    return "\n\n".join(parts)


def _settings(fields: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", f"`{_kind(field.annotation)}`", _default(field)) for name, field in fields.items()]
    return table(("setting", "type", "default"), rows)


def _kind(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return annotation.__name__ if plain else str(annotation).replace("typing.", "")


def _default(field: Any) -> str:
    """The default of a setting as TOML writes it."""
    from anisoscope.runs.toml import dumps

    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "not set" if value is None else f"`{dumps({'x': value}).removeprefix('x = ').strip()}`"


def files_page() -> str:
    """Run folders, sums, arrays, series, inputs."""
    parts = [
        "# Files",
        "## Run folder",
        markdown(_docstring("anisoscope.runs.store")),
        "### `manifest.json`",
        table(("key", "holds"), [(f"`{key}`", words.MANIFEST_MEANINGS[key]) for key in _manifest()]),
        "### `moments.safetensors`",
        words.MOMENTS,
        table(("tensor", "type", "shape", "holds"), _tensors()),
        "### `arrays.safetensors`",
        table(("command", "arrays"), [(f"`{name}`", what) for name, what in words.ARRAYS.items()]),
        "### Arrays of a sweep",
        markdown(_docstring("anisoscope.studies.sweep.dynamics")),
        "### Unfinished runs",
        markdown(_docstring("anisoscope.runs.engine")),
        "## A series of checkpoints",
        markdown(_docstring("anisoscope.models.checkpoints")),
        words.SERIES,
        "### What `pretrain` writes",
        markdown(_docstring("anisoscope.models.embedded_series")),
        "## Where models are",
        markdown(_docstring("anisoscope.models.locate")),
    ]
    for title, module in {"Vectors": "vectors", "Text": "text", "Speech": "speech", "Images": "images"}.items():
        parts += [f"## {title}", markdown(_docstring(f"anisoscope.inputs.{module}"))]
    return "\n\n".join(parts)


def _manifest() -> list[str]:
    """The keys of a manifest, of a run that is made for it."""
    from anisoscope.runs.store import write_run

    with tempfile.TemporaryDirectory() as folder:
        return list(write_run(folder, command="vectors", settings={}, rows=[], protocol={}).manifest)


def _tensors() -> list[tuple[str, str, str, str]]:
    """The tensors that a `Moments` stores, with letters for sizes that vary."""
    import numpy as np
    import torch

    from anisoscope.accumulate.moments import Moments

    moments = Moments(7)
    moments.update(torch.eye(7)[:6], sequences=np.array([1, 1, 2, 3, 4, 5], dtype=np.uint64))
    letters = {7: "d", 32: "g", 6: "m", 5: "s", 0: "c"}
    rows = []
    for name, tensor in sorted(moments.state().items()):
        part, _, last = name.partition(".")
        if part == "first":
            continue  # as `rest`
        sizes = list(tensor.shape) if last == "meta" or name == "meta" else [letters.get(n, n) for n in tensor.shape]
        meaning = words.TENSOR_MEANINGS.get(name) or words.TENSOR_MEANINGS[last]
        rows.append((f"`{name}`", str(tensor.dtype).removeprefix("torch."), f"({', '.join(map(str, sizes))})", meaning))
    return rows


def _docstring(module: str) -> str:
    return ast.get_docstring(tree(module)) or ""


WRITERS: dict[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "api.md": api_page,
    "geometry.md": geometry_page,
    "table.md": table_page,
    "plans.md": plans_page,
    "files.md": files_page,
}


def pages() -> dict[str, str]:
    """The text of every page."""
    return {name: f"{GENERATED}\n\n{write()}\n" for name, write in WRITERS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages differ")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = PAGES / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
