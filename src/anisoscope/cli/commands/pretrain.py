"""Train small models from scratch, with checkpoints along the way."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli.options import asking, parameters, values_of
from anisoscope.cli.study import shared_parameters
from anisoscope.runs.settings import Machine
from anisoscope.training.recipe import Recipe

HELP = """
Train a small model from scratch and keep checkpoints on a log grid, step 0 included.

The folder OUT holds recipe.toml, which repeats the training, and per seed a log and checkpoint folders that
transformers and every anisoscope command read. If it is killed, repeat the command: the training
continues and ends with the same weights.

Examples:
  anisoscope pretrain --arch bert --data enwik8 --steps 8192 --seeds 0,1 --out series
  anisoscope pretrain --arch gpt2 --attention gated --data book.txt --steps 2000 --out gated
  anisoscope pretrain --arch vit --data digits --steps 1000 --out digits
  anisoscope pretrain --recipe series/recipe.toml --seeds 2 --out series
"""
_SHARED = ("csv", "force", "json")


def _parameters() -> list[inspect.Parameter]:
    """Where the training goes and what it repeats, then the fields of the recipe, all of them optional."""
    out = typer.Option("--out", "-o", help="Folder of the training; one that is already there continues.")
    recipe = typer.Option("--recipe", help="A recipe.toml to repeat; options given here override it.")
    own = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        _optional("out", Annotated[Path, out], Path("series")),
        _optional("recipe", Annotated[Path | None, recipe], None),
    ]
    fields = parameters(Recipe, [name for name in Recipe.model_fields if name != "data_sha256"])
    own += [one.replace(default=None) if one.name == "data" else one for one in fields]
    own += parameters(Machine, ["threads"])
    return own + [one for one in shared_parameters() if one.name in _SHARED]


def _optional(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(given: dict[str, Any]) -> None:
    from anisoscope.cli.output import say
    from anisoscope.runs.stopping import stoppable
    from anisoscope.runs.writing import check_target
    from anisoscope.training.pretrain import pretrain as train

    known = Recipe.read(given["recipe"]).as_dict() if given["recipe"] else {}
    recipe = Recipe.check({**known, **values_of(Recipe, _written(given))}, command="pretrain")
    threads = Machine.check({"threads": given["threads"]}, command="pretrain").threads
    if given["csv"] is not None:
        check_target(given["csv"], kind="csv", inputs=recipe.data, force=given["force"])
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with stoppable():
        checkpoints = train(recipe, given["out"], announce=lambda line: say(line, err=True))
    _report(recipe, given, len(checkpoints))


def _written(given: dict[str, Any]) -> dict[str, Any]:
    """What was written on the command line: defaults must not override a recipe that is repeated."""
    source = given["context"].get_parameter_source
    return {name: value for name, value in given.items() if getattr(source(name), "name", "") == "COMMANDLINE"}


def _report(recipe: Recipe, given: dict[str, Any], checkpoints: int) -> None:
    from anisoscope.cli.output import as_json, print_json, say, write_csv
    from anisoscope.runs.measurement import Measurement
    from anisoscope.training.series import log_rows

    rows = [row for seed in recipe.seeds for row in log_rows(given["out"], seed)]
    last = [row for row in rows if row.metric == "validation_loss" and row.step == recipe.steps]
    losses = ", ".join(f"seed {row.seed}: {row.value:.4f}" for row in last)
    verdict = f"Validation loss after {recipe.steps:,} steps: {losses}."
    if given["csv"] is not None:
        write_csv(given["csv"], rows, inputs=recipe.data, force=given["force"])
    if given["json"]:
        found = Measurement(tuple(rows), verdict, command="pretrain")
        print_json({**as_json(found), "run": str(given["out"])})
    else:
        say(f"{checkpoints} checkpoints in {given['out']}. {verdict}")


pretrain = asking(_parameters(), HELP, _run)
