"""Repeat what a run.toml describes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli.options import asking, parameters, values_of
from anisoscope.cli.study import carry_out, shared_parameters
from anisoscope.runs.settings import Machine

HELP = """
Repeat what a run.toml describes: every run writes one.

Examples:
  anisoscope run anisoscope-runs/vectors-embeddings-1a2b3c4d/run.toml --out again
  anisoscope run my-study.toml --device cuda
"""
_PLAN = inspect.Parameter(
    "plan",
    inspect.Parameter.KEYWORD_ONLY,
    annotation=Annotated[Path, typer.Argument(metavar="RUN", help="A run.toml, or the folder of a run.")],
)


def _run(given: dict[str, Any]) -> None:
    from anisoscope.runs.perform import inputs_of, plan_of

    plan: Path = given["plan"] / "run.toml" if given["plan"].is_dir() else given["plan"]
    study, settings = plan_of(plan)
    machine = Machine.check(values_of(Machine, given), command="run")
    carry_out(study, settings, machine, given, repeats=inputs_of(plan) if plan.name == "run.toml" else {})


run = asking([_PLAN, *parameters(Machine), *shared_parameters()], HELP, _run)
