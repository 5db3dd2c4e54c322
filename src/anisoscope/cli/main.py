"""The command line: `anisoscope COMMAND`. A command's module is imported when that command runs, not before.

`anisoscope --help` lists every command without importing any of them: names and one-line helps stand in `COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# name: (module, panel, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "measure": ("measure", "Measure", "How anisotropic each layer of a model is, of any modality."),
    "attention": ("attention", "Measure", "Queries, keys and attention rows of a model, by layer and head."),
    "sweep": ("sweep", "Measure", "The same along a series of training checkpoints."),
    "vocabulary": (
        "vocabulary",
        "Measure",
        "Input and output vocabulary matrices: partition function, drift, spectrum.",
    ),
    "final-norm": ("final_norm", "Measure", "What a model's norms do to the geometry."),
    "vectors": ("vectors", "Measure", "Vectors in files: how anisotropic, by drift or by spectrum."),
    "calibrate": ("calibrate", "Measure", "Similarity floor and thresholds of embeddings, and what would help."),
    "null": ("null", "Measure", "What isotropy would look like in this many dimensions."),
    "block": ("block", "Experiment", "The untrained block under a drift: is it the architecture?"),
    "intervene": ("intervene", "Experiment", "Take a part of the drift away and see what it was for."),
    "pretrain": ("pretrain", "Experiment", "Train small models from scratch, with checkpoints along the way."),
    "variants": ("variants", "Experiment", "Train kinds of attention, or objectives, side by side and measure them."),
    "paper": ("paper", "Experiment", "Every figure of the two papers, and whether what they say of it holds."),
    "compare": ("compare", "Runs", "Differences between two runs by site, with intervals."),
    "report": ("report", "Runs", "One HTML page of runs that opens offline and can be mailed."),
    "show": ("show", "Runs", "Print a run: verdict, table, small curves."),
    "run": ("run", "Runs", "Do again what a run.toml describes."),
    "models": ("models", "Runs", "The models of the two papers, and which are at hand."),
    "demo": ("demo", "Runs", "The main job on what is embedded, offline, in a few minutes."),
}


class LazyCommands(TyperGroup):
    """Commands known by name; each module is imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the list of commands shows of one: its name and its line, without importing it."""
        if cmd_name not in COMMANDS:
            return None
        if "_ANISOSCOPE_COMPLETE" in os.environ:
            return _load(cmd_name)
        summary = COMMANDS[cmd_name][2]
        return TyperCommand(cmd_name, short_help=summary, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was asked for: now its module is imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else command, rest


def _load(name: str) -> Any:
    module, _, summary = COMMANDS[name]
    function = getattr(import_module(f"anisoscope.cli.{module}"), name.replace("-", "_"))
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, short_help=summary)(function)
    return typer.main.get_command(single)


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from anisoscope import __version__

        typer.echo(f"anisoscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """anisoscope: an instrument for the geometry of neural representations.

    \b
    Examples:
      anisoscope vectors embeddings.npy
      anisoscope calibrate embeddings.parquet --column embedding
      anisoscope null --dim 768 --n 20000

    `anisoscope COMMAND --help` explains a command, with examples.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line: exit code 2 for bad use, 1 for a failed job, 130 for Ctrl-C; no traceback for bad input."""
    from anisoscope.errors import AnisoscopeError

    try:
        return app(args=arguments, standalone_mode=True)
    except AnisoscopeError as error:
        print(f"anisoscope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
