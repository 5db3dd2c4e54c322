"""`anisoscope paper`: every figure of the two papers from its recipe, and what they say of it, tested.

A recipe (`recipes`) names the runs of a figure. A run is what any other command makes, one for each model: kept in its
own folder, resumed after a kill, used again the next time. `scale` says which models and data stand under the figures,
`checks` test the statements, `results` keeps what was seen; figures that were made before stay in the folder.

    results = perform(choose(["6a", "13"]), Scale("demo"), out=Path("paper"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.runs.perform import perform as perform_study
from anisoscope.runs.settings import Machine
from anisoscope.runs.store import Existing, Run
from anisoscope.runs.study import find_study
from anisoscope.studies.paper import recipes
from anisoscope.studies.paper.checks import NOTHING, Seen, carry_out
from anisoscope.studies.paper.checks.evidence import Evidence, short_name
from anisoscope.studies.paper.recipes import Figure, Statement, choose, figures
from anisoscope.studies.paper.results import Result, Tested, begin, describe, keep, status
from anisoscope.studies.paper.scale import Scale, along_training
from anisoscope.studies.paper.stand_ins import prepare, steps_of_stand_in

__all__ = ["Result", "Scale", "choose", "describe", "figures", "perform", "status"]

Announce = Callable[[str], None]
Made = dict[str, list[Run]]
DECIDES = "bert"  # the experiment with the paper's own input: vectors from the embedding table


def perform(
    chosen: Sequence[Figure],
    scale: Scale,
    *,
    out: Path,
    machine: Machine | None = None,
    existing: Existing = "resume",
    announce: Announce = lambda line: None,
) -> list[Result]:
    """Make (or use again) the runs of the figures and test their statements.

    A run that fails costs only the figures that need it.
    """
    earlier = begin(out, scale)
    made: Made = {}
    failed: dict[str, str] = {}
    possible = [figure for figure in chosen if not scale.not_testable(figure)]
    for name in dict.fromkeys(run for figure in possible for run in needed(figure, scale)):
        announce(f"{name}: {recipes.runs()[name]['command']}")
        try:
            runs = _make(name, scale, out, machine or Machine(), existing=existing, announce=announce)
            made[name] = list(runs)
        except AnisoscopeError as error:
            failed[name] = str(error)
            announce(f"{name}: {failed[name].splitlines()[0]}")
    results = [_result(figure, made, failed, scale) for figure in chosen]
    keep(results, earlier, scale, out)
    return results


def needed(figure: Figure, scale: Scale) -> tuple[str, ...]:
    """The runs of a figure: a figure without published models is not held against stand-ins."""
    if figure.modelless and scale.name == "demo":
        return tuple(name for name in figure.runs if "models" not in recipes.runs()[name])
    return figure.runs


# -- runs --------------------------------------------------------------------------------------------------------------


def _make(
    name: str, scale: Scale, out: Path, machine: Machine, *, existing: Existing, announce: Announce
) -> Iterator[Run]:
    """The runs of one recipe: one, or one for each of its models; a model that cannot be opened costs its own run."""
    recipe, settings = recipes.runs()[name], scale.settings(name)
    options: dict[str, Any] = {"existing": existing, "machine": machine}
    if scale.name == "demo":  # stand-ins are so small that they run slower on more than one thread
        mirror = str(out / "stand-ins")
        options["machine"] = machine.model_copy(update={"models_dir": mirror, "threads": 1})
    if "models" not in recipe:
        if recipe["command"] == "block":
            options["machine"] = machine
        yield _run(recipe["command"], settings, out / "runs" / name, options)
        return
    models = scale.models(name)
    failures: list[AnisoscopeError] = []
    for model in models:
        try:
            if scale.name == "demo":
                prepare([model], recipes.stand_ins(), out / "stand-ins", announce=announce)
            read = _checkpoints(model, recipe, scale, out, options["machine"])
            own = {**settings, **scale.own_data(model), **read}
            yield _run(recipe["command"], own, out / "runs" / name / short_name(model), options)
        except AnisoscopeError as error:
            announce(f"{name}, {model}: {str(error).splitlines()[0]}")
            failures.append(error)
    if models and len(failures) == len(models):
        raise failures[0]


def _run(command: str, settings: Mapping[str, Any], folder: Path, options: Mapping[str, Any]) -> Run:
    study = find_study(command)
    checked = study.settings.check(settings, command=command, where="a recipe of the papers")
    found = perform_study(study, checked, out=folder, **options)
    assert found.run is not None
    return found.run


def _checkpoints(
    model: str, recipe: Mapping[str, Any], scale: Scale, out: Path, machine: Machine
) -> dict[str, list[str]]:
    """The settings that name a model, or its checkpoints where the recipe follows trainings."""
    if not recipe.get("along_training") or scale.name == "local":
        return scale.pinned(model, machine.models_dir)
    if scale.name == "demo":
        return {"models": [f"{model}@step{step}" for step in steps_of_stand_in(model, out / "stand-ins")]}
    return {"models": along_training(model)}


# -- results -----------------------------------------------------------------------------------------------------------


def _result(figure: Figure, made: Made, failed: Mapping[str, str], scale: Scale) -> Result:
    if "protocol" in figure.options:
        figure = replace(figure, options=figure.options | {"protocol": scale.protocol})
    names = needed(figure, scale)
    told = dict.fromkeys(words for name in names for words in scale.about_run_data(name))
    known: dict[str, Any] = {"marks": scale.marks(figure), "data": tuple(told)}
    known["stands_in"] = about_stand_ins(figure) if scale.name == "demo" and not figure.modelless else None
    untestable = scale.not_testable(figure)
    missing = [failed[name] for name in names if name in failed and (name != "tokens" or not figure.by_input)]
    if missing and (not figure.together or not any(made.get(name) for name in names)):
        return Result(figure, failed=missing[0], **known)
    grouped = [(name, run) for name in names for run in made.get(name, ())]
    evidence = Evidence(
        grouped,
        stands_for=scale.stands_for(),
        convention="library" if scale.protocol == "paper" else "ours",
        p_values="asymptotic" if scale.protocol == "paper" else "permutation",
    )
    tested = tuple(examine(statement, evidence, figure) for statement in figure.statements)
    drawn = tuple(run for name, run in grouped if not (figure.by_input and name == "tokens"))
    return Result(figure, drawn, tested, not_testable=untestable, **known)


def examine(statement: Statement, evidence: Evidence, figure: Figure) -> Tested:
    """Carry out the check of a statement; for an untrained block under every input, of which the paper's decides."""
    if not evidence.runs:
        return Tested(statement, NOTHING)
    options = dict(statement.options)
    named = options.get("models")
    on: tuple[str, ...] = ()
    if named and options.get("extends") and not evidence.wanted(named):
        on = tuple(evidence.wanted(named, extends=True))
    if not figure.by_input:
        return Tested(statement, carry_out(statement.check, evidence, options), on=on)
    labels = dict.fromkeys(row.model for _, run in evidence.runs if run.command == "block" for row in run.rows())
    seen: dict[str, Seen] = {
        label: carry_out(statement.check, evidence, {**options, "label": label}) for label in labels
    }
    return Tested(statement, seen.get(DECIDES, NOTHING), by_input=seen, on=on)


def about_stand_ins(figure: Figure) -> str:
    """What stands in for the published models of a figure, in a few words."""
    scale = Scale("demo")
    names = [short_name(model) for run in figure.runs for model in scale.models(run)]
    if not names:
        return "a small byte-level BERT trained for this package, not the published MultiBERTs"
    kinds = {next(iter(recipes.stand_ins()[name])) for name in names}
    words = {"made": "untrained weights", "embedded": "a small BERT", "trained": "small models trained on the spot"}
    return f"{', '.join(text for kind, text in words.items() if kind in kinds)}, not the published checkpoints"
