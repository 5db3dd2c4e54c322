"""What the pages of the reference are made of: Markdown tables, and docstrings read off the source without running it.

Docstrings here are Markdown already, but for doctests, which become `pycon` blocks, and lists that follow a line
directly, which Markdown would run into it.

>>> print(markdown("One:\\n- a\\n\\n>>> 1 + 1\\n2"))
One:
<BLANKLINE>
- a
<BLANKLINE>
```pycon
>>> 1 + 1
2
```
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
WIDTH = 100
Definition = ast.FunctionDef | ast.ClassDef


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown."""
    lines: list[str] = []
    inside = False  # a doctest
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line.startswith(">>>") and not inside:
            lines += [*([""] if lines and lines[-1] else []), "```pycon"]
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        elif line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", " ")):
            lines.append("")
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


@cache
def tree(module: str) -> ast.Module:
    """The syntax tree of a module of the package, which is not imported."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def modules_in(package: str) -> list[str]:
    """The modules of a package and of the packages in it, by name."""
    folder = SOURCE.joinpath(*package.split("."))
    files = sorted(file for file in folder.rglob("*.py") if file.name != "__init__.py")
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files]


def kind_of(field: Any) -> str:
    """The type of a setting and its limits, as a person would write them: `integer, ≥ 1`, `"a" | "b"`."""
    schema = TypeAdapter(Annotated[field.annotation, field]).json_schema(mode="validation")
    return _kind({name: part for name, part in schema.items() if name not in ("default", "description")})


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = [f"{sign} {schema[name]:,}" for name, sign in _LIMITS.items() if name in schema]
    return ", ".join([_WORDS.get(schema.get("type", ""), "value"), *limits])


_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_WORDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "object": "table"}


def definition(module: str, name: str) -> Definition:
    """The function or class of that name."""
    return next(node for node in public(tree(module)) if node.name == name)


def public(parent: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Functions and classes in the order of the source, without those whose names begin with an underscore."""
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def described(node: Definition, *, level: int, owner: str = "") -> str:
    """A heading, the signature and the docstring of a definition; of a class, its fields and public methods too."""
    heading = f"{'#' * level} `{owner}{node.name}`"
    parts = [heading, f"```py\n{signature(node, owner=owner)}\n```", markdown(ast.get_docstring(node))]
    if isinstance(node, ast.ClassDef):
        parts += [
            described(method, level=level + 1, owner=f"{node.name}.")
            for method in public(node)
            if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
        ]
    return "\n\n".join(filter(None, parts))


def signature(node: Definition, *, owner: str = "") -> str:
    """How it is called: of a dataclass its fields, of another class what `__init__` takes."""
    name = f"{owner}{node.name}"
    if isinstance(node, ast.FunctionDef):
        decorated = {ast.unparse(decorator) for decorator in node.decorator_list}
        returns = "" if node.returns is None else f" -> {_annotation(node.returns)}"
        if decorated & {"property", "cached_property"}:
            return f"{name}{returns.replace(' ->', ':')}"
        return _wrapped(name, _arguments(node, bound=bool(owner) and "staticmethod" not in decorated), returns)
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    if made:
        return _wrapped(f"class {name}", _arguments(made[0], bound=True), "")
    fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign) and _is_field(item)]
    bases = [ast.unparse(base) for base in node.bases]
    return _wrapped(f"class {name}", fields or bases, "")


def _is_field(item: ast.AnnAssign) -> bool:
    return not ast.unparse(item.target).startswith("_") and "ClassVar" not in ast.unparse(item.annotation)


def _arguments(node: ast.FunctionDef, *, bound: bool) -> list[str]:
    """The parameters as written, with `*` where keywords begin; without self or cls."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    found = [_argument(a, d) for a, d in zip(positional, defaults, strict=True)][1 if bound else 0 :]
    if given.vararg or given.kwonlyargs:
        found.append("*" if given.vararg is None else f"*{_argument(given.vararg, None)}")
    found += [_argument(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return found + ([] if given.kwarg is None else [f"**{_argument(given.kwarg, None)}"])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg if argument.annotation is None else f"{argument.arg}: {_annotation(argument.annotation)}"
    if default is None:
        return text
    return f"{text}{' = ' if argument.annotation is not None else '='}{ast.unparse(default)}"


def _annotation(node: ast.expr) -> str:
    return ast.unparse(node).strip("'\"")


def _wrapped(name: str, arguments: Sequence[str], returns: str) -> str:
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{inner}){returns}"
