"""Write docs/reference from the code: commands, settings, functions, columns and metrics, files, errors, JSON schema.

    python scripts/make_reference.py             # write the pages
    python scripts/make_reference.py --check     # exit code 1 if a page differs from what the code says

A test runs the check, so the reference cannot go stale. This file is the frame: what makes a page, in which order.
`reference_words` explains the columns, tensors and keys that no docstring explains.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import reference_words as words
from reference_text import ROOT, definition, described, kind_of, markdown, modules_in, public, table, tree

PAGES = ROOT / "docs" / "reference"
GENERATED = "<!-- Written by scripts/make_reference.py from the code: change the code, then run it again. -->"


def commands_page() -> str:
    """Every command, from what the parser was told; what studies share comes once."""
    from anisoscope.cli.main import commands
    from anisoscope.cli.study import shared_parameters
    from anisoscope.runs.settings import Machine

    listed = [(f"[`{name}`](#anisoscope-{name})", summary) for name, (_, summary) in commands().items()]
    every = _options(_loaded("measure"))
    shared = {name: every[name] for name in (*Machine.model_fields, *(one.name for one in shared_parameters()))}
    once = table(("option", "meaning"), list(shared.values()))
    parts = ["# Command line", words.COMMANDS, table(("command", "does"), listed), "## Shared options", once]
    return "\n\n".join([*parts, *(_command(_loaded(name), name, shared) for name in commands())])


def _command(command: Any, name: str, shared: Mapping[str, Any]) -> str:
    """Help, examples and options of one command, those that others share by name only; of a group, of all in it."""
    text, _, examples = (command.help or "").partition("\b\nExamples:\n")
    shown = "\n".join(line.strip() for line in examples.splitlines())
    options = _options(command)
    also = [options.pop(key)[0] for key, meant in shared.items() if options.get(key) == meant]
    parts = [f"{'#' * (2 + name.count(' '))} `anisoscope {name}`", text.strip()]
    parts += [f"```console\n{shown}\n```" if shown else ""]
    parts += [table(("option", "meaning"), list(options.values()))] if options else []
    parts += [f"[Shared options](#shared-options): {', '.join(_short(one) for one in also)}."] if also else []
    parts += [_command(one, f"{name} {key}", shared) for key, one in getattr(command, "commands", {}).items()]
    return "\n\n".join(filter(None, parts))


def _loaded(name: str) -> Any:
    import typer

    from anisoscope.cli.main import app

    group: Any = typer.main.get_command(app)
    return group.resolve_command(group.context_class(group, info_name="anisoscope"), [name])[1]


def _options(command: Any) -> dict[str, tuple[str, str]]:
    """How the options of a command are written and what they mean, by name."""
    context = command.context_class(command, info_name=command.name)
    found = {one.name: one.get_help_record(context) for one in command.params}
    return {key: (f"`{_typed(spelling)}`", help) for key, (spelling, help) in found.items()}


def _short(option: str) -> str:
    """`-o, --out PATH` as `--out`."""
    return f"`--{option.partition('--')[2].split()[0].strip('`')}`"


def _typed(spelling: str) -> str:
    """`--limit <int>` as `--limit INTEGER`."""
    for kind, word in {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH", "Path": "PATH"}.items():
        spelling = spelling.replace(f"<list[{kind}]>", word).replace(f"<{kind}>", word)
    return spelling.replace("... PATH", "...").replace("... TEXT", "...")


def settings_page() -> str:
    """What each study is asked: the fields of its run.toml, its options and its Python keywords."""
    from anisoscope.runs.finding import entries
    from anisoscope.runs.settings import Machine
    from anisoscope.runs.study import find_study
    from anisoscope.training.recipe import Recipe

    parts = ["# Studies and settings", words.PLANS]
    for name, entry in entries().items():
        fields = find_study(name).settings.model_fields
        parts += [f"## `{name}`", markdown(_docstring(entry.module)), _settings(fields)]
    parts += ["## The machine", words.MACHINE, _settings(Machine.model_fields)]
    parts += ["## `recipe.toml`", markdown(_docstring("anisoscope.training.recipe")), _settings(Recipe.model_fields)]
    return "\n\n".join(parts)


def _settings(fields: Mapping[str, Any]) -> str:
    ordered = sorted(fields.items(), key=lambda item: not item[1].is_required())
    rows = [(f"`{name}`", f"`{kind_of(field)}`", _default(field), field.description or "") for name, field in ordered]
    return table(("setting", "type", "default", "meaning"), rows)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    plain = list(value) if isinstance(value, tuple) else value
    return "not set" if value is None else f"`{json.dumps(plain, ensure_ascii=False)}`"  # as TOML writes it


def api_page() -> str:
    """The public names, then what they are made of."""
    parts = ["# Python", words.API, *[described(node, level=2) for node in public(tree("anisoscope.api"))]]
    for title, places in words.PYTHON.items():
        parts.append(f"## {title}")
        for module, names in places.items():
            parts += [f"From `{module}`:", *[described(definition(module, name), level=3) for name in names]]
    return "\n\n".join(parts)


def geometry_page() -> str:
    """Every function of `anisoscope.geometry`, file by file."""
    parts = ["# Geometry", markdown(_docstring("anisoscope.geometry"))]
    for module in modules_in("anisoscope.geometry"):
        shown = [described(node, level=3) for node in public(tree(module))]
        parts += [f"## `{module}`", markdown(_docstring(module)), *shown] if shown else []
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
    parts += ["## Attention, in detail", markdown(_docstring("anisoscope.studies.attention.rows"))]
    return "\n\n".join(parts)


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None and high is None else " … ".join("" if end is None else f"{end:g}" for end in (low, high))


def files_page() -> str:
    """Run folders, sums, arrays, series, inputs."""
    from anisoscope.runs.array_names import ARRAYS

    parts = [
        "# Files",
        *("## Run folder", markdown(_docstring("anisoscope.runs.store"))),
        *(
            "### `manifest.json`",
            table(("key", "holds"), [(f"`{k}`", words.MANIFEST_MEANINGS[k]) for k in _manifest()]),
        ),
        *("### `moments.safetensors`", words.MOMENTS, table(("tensor", "type", "shape", "holds"), _tensors())),
        *("### `arrays.safetensors`", markdown(_docstring("anisoscope.runs.array_names"))),
        table(("array", "is called"), [(kind.replace("_", " "), f"`{name}`") for kind, name in ARRAYS.items()]),
        *("### Arrays of a sweep", markdown(_docstring("anisoscope.studies.sweep.dynamics"))),
    ]
    for title, module in words.FILES.items():
        parts += [f"## {title}", markdown(_docstring(module))]
        parts += [words.SERIES] if module == "anisoscope.models.checkpoints" else []
    return "\n\n".join(parts)


def _manifest() -> list[str]:
    """The keys of a manifest, of a measurement that is saved for it."""
    from anisoscope.runs.measurement import Measurement

    with tempfile.TemporaryDirectory() as folder:
        Measurement((), "").save(folder)
        return list(json.loads((ROOT / folder / "manifest.json").read_text(encoding="utf-8")))


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


def errors_page() -> str:
    """The family of errors and the exit codes."""
    module = "anisoscope.errors"
    classes = [node for node in public(tree(module)) if isinstance(node, ast.ClassDef)]
    rows = [(f"`{node.name}`", ast.get_docstring(node) or "") for node in classes]
    parts = ["# Errors", markdown(_docstring(module)), table(("error", "means"), rows), words.ERRORS]
    return "\n\n".join(parts)


def json_schema() -> str:
    """JSON Schema of what `--json` prints, whose `measurements` are the rows of the table."""
    from anisoscope.runs.table import COLUMNS, Row, schema

    kinds = {"string": "string", "int64": "integer", "double": "number"}
    text = {name: getattr(Row(), name) is not None for name in COLUMNS}  # columns that are never missing
    columns = {
        field.name: {
            "type": kinds[str(field.type)] if text[field.name] else [kinds[str(field.type)], "null"],
            "description": words.COLUMN_MEANINGS[field.name],
        }
        for field in schema()
    }
    row = {"type": "object", "properties": columns, "required": list(COLUMNS), "additionalProperties": False}
    printed = {
        name: {"description": text, **kind} for name, (kind, text) in {**words.PRINTED, "measurements": _ROWS}.items()
    }
    written = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "anisoscope --json, version 1",
        "type": "object",
        "properties": printed,
        "required": list(printed),
        "additionalProperties": False,
        "$defs": {"row": row},
    }
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


_ROWS = ({"type": "array", "items": {"$ref": "#/$defs/row"}}, "rows of the tidy table")


def _docstring(module: str) -> str:
    return ast.get_docstring(tree(module)) or ""


WRITERS: dict[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "settings.md": settings_page,
    "api.md": api_page,
    "geometry.md": geometry_page,
    "table.md": table_page,
    "files.md": files_page,
    "errors.md": errors_page,
}


def pages() -> dict[str, str]:
    """The text of every file of the reference."""
    return {name: f"{GENERATED}\n\n{write()}\n" for name, write in WRITERS.items()} | {"schema.json": json_schema()}


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
