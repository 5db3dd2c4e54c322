"""The command of a study: its own options, those of the machine, and those that every study has."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from anisoscope.cli.flags import All, Csv, Figures, Force, Json, Markdown, RunFolder
from anisoscope.cli.options import asking, parameters, values_of
from anisoscope.cli.single import single
from anisoscope.errors import UsageError
from anisoscope.runs.settings import Machine
from anisoscope.runs.store import EXISTING, checked_existing
from anisoscope.runs.study import Study, find_study


def shared_parameters() -> list[inspect.Parameter]:
    """Where the run goes, what is printed, what happens to what is there: alike for every study."""
    declared: dict[str, tuple[Any, Any]] = {
        "out": (RunFolder, None),
        "existing": (Annotated[str, existing_option()], "resume"),
        "figures": (Figures, True),
        "csv": (Csv, None),
        "markdown": (Markdown, None),
        "force": (Force, False),
        "all": (All, False),
        "json": (Json, False),
    }
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in declared.items()
    ]


def existing_option() -> Any:
    words = "What to do with an existing run: continue or reuse it, only reuse it, replace it, refuse."
    complete = lambda incomplete: [word for word in EXISTING if word.startswith(incomplete)]  # noqa: E731
    return typer.Option("--existing", help=words, metavar="|".join(EXISTING), autocompletion=complete)


def study_command(name: str, *, called: str | None = None) -> Any:
    """The command of a study, built from its declaration; `called` is its name within a group."""
    study = find_study(name)
    own = parameters(study.settings)
    machine = parameters(Machine, study.machine)
    asked = asking(
        [*own, *machine, *shared_parameters()], study.help or study.summary, lambda given: _run(study, given)
    )
    return single(called or name, study.summary, asked)


def _run(study: Study, given: dict[str, Any]) -> None:
    settings = study.settings.check(values_of(study.settings, given), command=study.name)
    machine = Machine.check(values_of(Machine, {name: given.get(name) for name in study.machine}), command=study.name)
    carry_out(study, settings, machine, given)


def carry_out(
    study: Study, settings: Any, machine: Machine, given: dict[str, Any], *, repeats: Mapping[str, Any] | None = None
) -> None:
    """Perform a study and end the command: the story or JSON, the table as CSV, the figures."""
    from anisoscope.cli.output import finish
    from anisoscope.runs.perform import default_folder, input_paths, perform
    from anisoscope.runs.work.engines import engine, launched
    from anisoscope.runs.writing import check_target

    if study.collect is None and launched():
        raise UsageError(f"`{study.name}` is the work of one process", do="start it without torchrun")
    _leave_pandas_alone()
    existing = checked_existing(given["existing"])
    inputs = input_paths(settings)
    out = given["out"] or default_folder(study, settings, machine)
    for kind in ("csv", "markdown"):
        if given[kind] is not None:
            check_target(given[kind], kind=kind, inputs=inputs, out=out, force=given["force"])
    measurement = perform(study, settings, machine=machine, out=out, existing=existing, repeats=repeats)
    if study.collect is None or engine().chief:
        finish(study, measurement, given, inputs=inputs)
        if code := study.exit_code(measurement.verdicts):
            raise typer.Exit(code)


def _leave_pandas_alone() -> None:
    """Keep pyarrow from importing pandas, 0.3 s, only to ask whether our lists are columns of it; it asks once."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        pa.array([0])
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
