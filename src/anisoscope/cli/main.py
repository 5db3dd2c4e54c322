"""The command line: `anisoscope COMMAND`. A command's module is imported when that command runs, not before.

Studies are found in `studies/`, all other commands in `cli/commands/`: the name of the module is the command, the first
line of its docstring the line of help. A module there with a function `commands` is a group of them.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from anisoscope.cli.single import single
from anisoscope.runs.stopping import Stopped, stoppable

_MEASURE = (
    "vectors",
    "calibrate",
    "remedy",
    "advise",
    "measure",
    "attention",
    "sweep",
    "vocabulary",
    "final-norm",
    "null",
)
_EXPERIMENT = ("block", "intervene", "pretrain", "variants", "paper")
_FIRST = (*_MEASURE, *_EXPERIMENT, "compare", "gate", "merge", "report", "show", "run", "models", "demo")
_REFUSED = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow more open files",
    errno.ENOSPC: "make room, or choose another place",
    errno.EDQUOT: "make room, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "check the permissions of the file",
    errno.EPERM: "check the permissions of the file",
    errno.ELOOP: "check the links that lead there",
    errno.EIO: "check the disk, and try again",
}
REPORT_TO = "https://github.com/anisoscope/anisoscope/issues"


@cache
def commands() -> dict[str, tuple[str, str]]:
    """Every command by name: its module and its line of help, read without importing anything."""
    from anisoscope.runs.finding import entries, first_line

    found = {entry.name: (entry.module, entry.summary) for entry in entries().values()}
    for file in sorted((Path(__file__).parent / "commands").glob("[!_]*.py")):
        summary = first_line(file.read_text(encoding="utf-8"))
        found[file.stem.replace("_", "-")] = (f"anisoscope.cli.commands.{file.stem}", summary)
    order = {name: place for place, name in enumerate(_FIRST)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


class LazyCommands(TyperGroup):
    """Commands known by name; each module is imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command as the list of commands shows it, name and one-line help, without importing it."""
        if cmd_name not in commands():
            return None
        if "_ANISOSCOPE_COMPLETE" in os.environ:
            return _load(cmd_name)
        summary = commands()[cmd_name][1]
        return TyperCommand(cmd_name, short_help=summary, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was asked for: now its module is imported."""
        if args and not args[0].startswith("-") and args[0] not in commands():
            from anisoscope.errors import UsageError
            from anisoscope.runs.settings import nearest

            do = nearest(args[0], commands())[2:] or "anisoscope --help lists them"
            raise UsageError("there is no such command", got=args[0], do=do)
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in commands() else command, rest


def _load(name: str) -> Any:
    module, summary = commands()[name]
    if module.startswith("anisoscope.studies."):
        from anisoscope.cli.study import study_command

        return study_command(name)
    found = import_module(module)
    if hasattr(found, "commands"):  # a group of commands
        return TyperGroup(
            name=name, commands=found.commands(), help=summary, no_args_is_help=True, rich_markup_mode=None
        )
    return single(name, summary, getattr(found, name.replace("-", "_")))


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from anisoscope import __version__

        typer.echo(f"anisoscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """anisoscope: an instrument for the geometry of neural representations.

    \b
    Examples:
      anisoscope vectors embeddings.npy
      anisoscope calibrate embeddings.parquet --column embedding
      anisoscope measure bert-base-uncased --data texts/

    `anisoscope COMMAND --help` explains a command, with examples.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line: exit code 2 for bad use, 1 for a failed job, 130 and 143 for signals.

    No traceback without `--debug`, which may stand anywhere.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in given or bool(os.environ.get("ANISOSCOPE_DEBUG"))
    _stand_in()
    _forgive(sys.stdout, sys.stderr)
    if os.environ.get("COLUMNS") == "0":  # unknown: rich would print nothing at all
        del os.environ["COLUMNS"]
    try:
        _stand_somewhere()
        with stoppable("stopped; every file that was written is complete"):
            return app(args=[word for word in given if word != "--debug"], standalone_mode=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BaseException as error:
        if isinstance(error, SystemExit) or debug:
            raise
        sys.exit(_explain(error))


def _stand_in() -> None:
    """Put the null device in the place of a closed standard stream.

    Otherwise `print` writes errors among the results, and the first file opened takes the number of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  # open until the end
            setattr(sys, name, stream)


def _stand_somewhere() -> None:
    """Refuse to work in a folder that was removed: relative names lead nowhere, and libraries end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        from anisoscope.errors import UsageError

        raise UsageError("the current folder was removed", do="change to one that is there") from None


def _forgive(*streams: Any) -> None:
    """Write a question mark for any sign (±, …) that a terminal or a file cannot encode."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory was too little, be it for a library that is loaded."""
    no_room = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or no_room or "failed to map segment from shared object" in str(error)


def _explain(error: BaseException) -> int:
    """One short message for whatever went wrong, and the exit code."""
    from anisoscope.errors import AnisoscopeError, printable

    if isinstance(error, AnisoscopeError | Stopped):
        print(f"anisoscope: {error}", file=sys.stderr)
        return error.exit_code
    if _lacks_memory(error):
        print("anisoscope: not enough memory; try --batch-tokens 1024 or --sample 512", file=sys.stderr)
        return 1
    first = (str(error).splitlines() or [""])[0][:300]
    if isinstance(error, OSError) and error.errno in _REFUSED:
        print(printable(f"anisoscope: the system refuses: {first}"), file=sys.stderr)
        print(f"  to do:    {_REFUSED[error.errno]}", file=sys.stderr)
        return 1
    print(printable(f"anisoscope: unexpected {type(error).__name__}: {first}"), file=sys.stderr)
    print(f"  to do:    give --debug for the traceback, and report it: {REPORT_TO}", file=sys.stderr)
    return 1
