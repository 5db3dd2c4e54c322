"""The page of the reference on the command line: every command of `anisoscope.cli.main`, from what Typer is told."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from reference_text import table
from typer.models import ArgumentInfo, OptionInfo

from anisoscope.cli.main import COMMANDS

_KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


@dataclass(frozen=True)
class Parameter:
    """One argument or option: what is typed, what it takes, its default and its help."""

    written: str
    takes: str
    default: str
    help: str
    is_option: bool


def function_of(command: str) -> Callable[..., None]:
    """The function behind a command."""
    return getattr(import_module(f"anisoscope.cli.{COMMANDS[command][0]}"), command.replace("-", "_"))


def parameters(command: str) -> Iterator[Parameter]:
    """The arguments and options of a command, in the order of its help."""
    function = function_of(command)
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        yield _parameter(name, hints[name], parameter.default)


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{name} is not annotated for Typer")
    kind, info = get_args(hint)[0], next(x for x in get_args(hint)[1:] if isinstance(x, OptionInfo | ArgumentInfo))
    several, plain = _plain(kind)
    if isinstance(info, ArgumentInfo):
        written = info.metavar or name.upper() + ("..." if several else "")
        return Parameter(
            written if default is inspect.Parameter.empty else f"[{written}]", "", "", info.help or "", False
        )
    flag = plain is bool
    # in Annotated, Typer keeps the first name that is written out as the default
    decided = [*([info.default] if isinstance(info.default, str) else []), *(info.param_decls or ())]
    written = ", ".join(f"`{part}`" for part in decided or _option_names(name, flag=flag))
    takes = "" if flag else f"`{info.metavar or _KINDS[plain]}`" + (", repeated" if several else "")
    return Parameter(written, takes, _default(default, flag=flag), info.help or "", True)


def _option_names(name: str, *, flag: bool) -> list[str]:
    dashed = name.replace("_", "-")
    return [f"--{dashed}", f"--no-{dashed}"] if flag else [f"--{dashed}"]


def _plain(kind: Any) -> tuple[bool, type]:
    """Whether a type is a list, and of what; None apart."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(inner for inner in get_args(kind) if inner is not type(None))
    return (True, get_args(kind)[0]) if get_origin(kind) is list else (False, kind)


def _default(value: Any, *, flag: bool) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None:
        return ""
    return ("on" if value else "off") if flag else f"`{value}`"


def help_parts(command: str) -> tuple[str, list[str]]:
    """The help of a command in two: the text, and the examples."""
    text, _, examples = inspect.cleandoc(function_of(command).__doc__ or "").partition("\b\nExamples:")
    return text.strip(), [line.strip() for line in examples.strip().splitlines()]


def command_section(command: str) -> str:
    """Synopsis, help, examples, arguments and options of one command."""
    text, examples = help_parts(command)
    every = list(parameters(command))
    arguments = [one for one in every if not one.is_option]
    options = [one for one in every if one.is_option]
    synopsis = " ".join(["anisoscope", command, *(one.written for one in arguments), "[OPTIONS]"])
    parts = [f"### `anisoscope {command}`", f"```console\n{synopsis}\n```", text]
    if examples:
        parts.append("```console\n" + "\n".join(examples) + "\n```")
    if arguments:
        parts.append(table(("argument", "meaning"), [(f"`{one.written}`", one.help) for one in arguments]))
    parts.append(
        table(
            ("option", "takes", "default", "meaning"),
            [(one.written, one.takes, one.default, one.help) for one in options],
        )
    )
    return "\n\n".join(parts)


def commands_page() -> str:
    """The whole page, commands in the panels of `anisoscope --help`."""
    panels = dict.fromkeys(panel for _, panel, _ in COMMANDS.values())
    lists = {panel: [name for name, (_, p, _) in COMMANDS.items() if p == panel] for panel in panels}
    anchors = [(f"[`{name}`](#anisoscope-{name})", COMMANDS[name][2]) for names in lists.values() for name in names]
    parts = ["# Command line", _OPENING, table(("command", "does"), anchors)]
    for panel, names in lists.items():
        parts += [f"## {panel}", *map(command_section, names)]
    return "\n\n".join(parts)


_OPENING = """`anisoscope COMMAND --help` prints what stands here. Commands that measure share four options: `--out`,
`--csv`, `--existing` and `--json`. With `--json` exactly one object goes to standard output,
`{"run": folder, "verdict": …, "measurements": [rows]}`; progress goes to standard error. Exit codes: 2 for bad use, 1
for a failed job, 130 for Ctrl-C."""
