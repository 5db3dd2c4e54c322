"""Imports point one way, and nothing heavy is imported before it is needed.

Read from the syntax tree of every file in src, imports inside functions and under TYPE_CHECKING included, so that a
wrong direction cannot hide there.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "anisoscope"
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = ("torch", "transformers", "scipy", "matplotlib", "numpy", "pyarrow", "plotly", "pandas")

# what each part may import of the others
MAY_IMPORT = {
    "errors": set(),
    "geometry": {"errors"},
    "accumulate": {"errors", "geometry"},
    "inference": {"errors", "geometry", "accumulate"},
    "inputs": {"errors"},
    "models": {"errors", "inputs"},
    "capture": {"errors", "models"},
    "runs": {"errors", "geometry", "accumulate", "inference", "capture", "inputs", "models"},
}
MAY_IMPORT["training"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["studies"] = MAY_IMPORT["training"] | {"training"}
MAY_IMPORT["watch"] = MAY_IMPORT["studies"] | {"studies"}
MAY_IMPORT["report"] = {"errors", "runs", "geometry", "inference"}
MAY_IMPORT["results"] = {"errors", "runs", "report"}
ALL = {*MAY_IMPORT, "cli", "api"}
MAY_IMPORT |= {"cli": ALL, "api": ALL - {"cli"}, "__init__": ALL - {"cli"}, "__main__": ALL}


@cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, whether it runs at import) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late: set[ast.AST] = set()
    for node in ast.walk(tree):
        guard = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if guard or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            late.update(ast.walk(node))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, node not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "anisoscope" else [base]
            found += [(name, node.lineno, node not in late) for name in names]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"anisoscope(\.[a-z_]+)+\.?(:\w+)?", str(node.value)):
            found.append((node.value.partition(":")[0].rstrip("."), node.lineno, False))  # imported by a string
    return found


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("anisoscope", *path.relative_to(SOURCE).parent.parts)
    return ".".join([*package[: len(package) - node.level + 1], *(node.module or "").split(".")]).strip(".")


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FINDER = ("runs/finding.py", "anisoscope.studies")  # the runner finds studies by their folder, and names none of them


def wrong(path: Path) -> list[str]:
    found = []
    for module, line, _ in imports(path):
        if (path.relative_to(SOURCE).as_posix(), module) == FINDER:
            continue
        pieces = module.split(".")
        target = pieces[1] if pieces[0] == "anisoscope" and len(pieces) > 1 else None
        known = target in ALL or (target is not None and (SOURCE / f"{target}.py").exists())
        if target is not None and known and target != part(path) and target not in MAY_IMPORT[part(path)]:
            found.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    return found


def test_every_part_of_the_package_has_its_place() -> None:
    parts = {part(path) for path in FILES}
    assert parts <= MAY_IMPORT.keys(), parts - MAY_IMPORT.keys()


def test_imports_point_one_way() -> None:
    found = [line for path in FILES for line in wrong(path)]
    assert not found, "\n".join(found)


def test_no_module_waits_for_itself() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = ".".join(["anisoscope", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = {module for module, _, at_import in imports(path) if at_import and module != name}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_the_test_sees_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    for text in (
        "import anisoscope.studies.measure.study",
        "def f():\n    from anisoscope import runs",
        "from ..runs import store",
        "import_module('anisoscope.runs.store')",
        "import_module(f'anisoscope.report.{name}')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from anisoscope.runs.store import Run",
    ):
        path = tmp_path / "geometry" / f"x{abs(hash(text))}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert wrong(path), text


def test_geometry_is_numpy_only_and_report_is_without_torch() -> None:
    for path in FILES:
        forbidden = {"geometry": {"torch", "transformers", "pyarrow"}, "report": {"torch", "transformers"}}
        tops = {module.split(".")[0]: line for module, line, _ in imports(path)}
        assert not forbidden.get(part(path), set()) & tops.keys(), path


def test_scipy_is_imported_late() -> None:
    for path in FILES:
        early = [line for module, line, at_import in imports(path) if at_import and module.split(".")[0] == "scipy"]
        assert not early, f"{path}:{early}"


def test_command_modules_import_nothing_heavy_by_themselves() -> None:
    for path in FILES:
        if part(path) in ("cli", "__init__", "__main__", "errors"):
            early = [m for m, _, at_import in imports(path) if at_import and m.split(".")[0] in HEAVY]
            assert not early, f"{path}: {early}"


def test_no_import_is_relative_and_none_takes_everything() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}"
                assert node.names[0].name != "*", f"{path}:{node.lineno}"


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """What one fresh process has loaded after each step: the package, the help, every command module."""
    commands = [f"anisoscope.cli.{path.stem}" for path in sorted((SOURCE / "cli").glob("*.py"))]
    code = f"""
import contextlib, importlib, io, json, sys
heavy = {(*HEAVY, "pydantic", "rich")!r}
seen = {{}}
def note(step):
    seen[step] = [name for name in heavy if name in sys.modules]
import anisoscope
note("import anisoscope")
from anisoscope.cli.main import main
sys.argv = ["anisoscope", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
note("anisoscope --help")
for name in {commands!r}:
    importlib.import_module(name)
    note(name)
print(json.dumps(seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_nothing_heavy_is_loaded_before_a_command_runs(loaded: dict[str, list[str]]) -> None:
    assert loaded["import anisoscope"] == []
    assert loaded["anisoscope --help"] == []
    later = {
        step: set(names) - {"pydantic"} for step, names in loaded.items()
    }  # settings are what a command needs first
    assert {step: names for step, names in later.items() if names} == {}
