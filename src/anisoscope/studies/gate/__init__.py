"""May this be released? Equivalence tests between an original and a version of it.

Both are run folders, files of vectors, or models that read the same data; what is measured is compared as `compare`
does, paired by sequence, and judged by rules (`rules`). The exit code is 0 where all of them hold, 1 where one fails, 2
where the data cannot say.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from anisoscope.runs.job import Job
from anisoscope.runs.settings import Data, Embedding, Opening, Sample, option
from anisoscope.runs.story import Story, Table, between, number
from anisoscope.runs.study import RUNS_MODEL, Findings, Study
from anisoscope.studies.gate.rules import FAILS, HOLDS, OUTCOMES, judge, overall, read_rules

if TYPE_CHECKING:
    from anisoscope.runs.store import Run
    from anisoscope.studies.gate.rules import Rule, Verdict

_SIDES = ("first", "second")
_WHAT = "Run folder, file of vectors, or model"


class GateSettings(Data, Opening, Embedding, Sample):
    """What `anisoscope gate` is asked."""

    first: str = option(f"{_WHAT}: the original.", argument=True, complete="models", paths=True)
    second: str = option(f"{_WHAT}: the version to be judged.", argument=True, complete="models", paths=True)
    rules: str | None = option(
        "TOML file of rules (default: cosine within 0.02, neighbours at least 0.95, directions 0.99).", None, paths=True
    )


def measure(job: Job) -> Findings:
    """Measure what is not measured yet, compare, judge."""
    from anisoscope.studies.compare.differences import compare_runs

    rules = read_rules(job.settings.rules)
    if job.settings.rules is not None:
        from anisoscope.runs.writing import file_sha256

        path = job.settings.rules
        job.remember("rules", kind="file", name=path, fingerprint=file_sha256(Path(path)))
    job.begin()
    with ExitStack() as stack:
        folder = job.folder / "measured" if job.folder else Path(stack.enter_context(TemporaryDirectory()))
        first, second = (_run(job, side, rules, folder / side) for side in _SIDES)
        aligned = first.command == second.command == "vectors"
        compared = compare_runs(first, second, aligned=aligned)
    rows, verdicts = judge(rules, compared.rows)
    protocol = {
        **compared.protocol,
        "holds": "the 95 % interval lies within the limits: two one-sided tests at 2.5 % each",
        "pairing": "rows of the same number" if aligned else "texts of the same name",
    }
    notes = [*_one_thing(job), *compared.notes]
    return Findings(rows, _sentence(verdicts), notes=notes, protocol=protocol, verdicts=verdicts)


def _one_thing(job: Job) -> list[str]:
    """What is said of a thing that is compared with itself: options such as `--dtype` are those of both sides."""
    if set(_SIDES) & job.given.keys() or job.settings.first != job.settings.second:
        return []
    return ["both sides are the same, read in the same way; for another --dtype, measure each side and gate the runs"]


def _run(job: Job, side: str, rules: Sequence[Rule], out: Path) -> Run:
    """The run that a side names, or the run that measures it."""
    from anisoscope.runs.perform import perform
    from anisoscope.runs.store import MANIFEST
    from anisoscope.studies.folds import names_model

    settings, name = job.settings, getattr(job.settings, side)
    if (Path(name) / MANIFEST).is_file():
        return job.open_run(name)
    given = job.given.get(side)
    if not (names_model([name]) if given is None else callable(given)):
        job.vectors(side, column=settings.column)
        asked = {"files": [name], "column": settings.column, "sample": settings.sample, "seed": settings.seed}
        own = {} if given is None else {"files": given}
        found = perform("vectors", {**asked, "neighbours": False}, machine=job.machine, out=out, given=own)
    else:
        found = _measured(job, name, given, rules, out)
        own = [record for record in found.inputs.values() if record["kind"] == "model"]
        job.inputs |= {f"model {side} {record['name']}": record for record in own}
        job.inputs |= {key: record for key, record in found.inputs.items() if record["kind"] == "data"}
    assert found.run is not None
    return found.run


def _measured(job: Job, name: str, module: Any, rules: Sequence[Rule], out: Path) -> Any:
    """Measure a model, or a module in memory, at the sites of the rules, on the data or the package's sentences."""
    from anisoscope.inputs.sentences import sentences
    from anisoscope.runs.perform import perform

    settings = job.settings.as_dict()
    asked = {name for part in (Data, Opening, Embedding, Sample) for name in part.model_fields}
    shared = {name: value for name, value in settings.items() if name in asked}
    sites = list(dict.fromkeys("embedding" if rule.site == "*" else rule.site for rule in rules))
    own = {} if job.settings.data else {"data": sentences()}
    given = {key: job.given[key] for key in ("data", "processor") if job.given.get(key) is not None}
    given |= own | ({} if module is None else {"models": [module]})
    shared |= {"models": [name], "sites": sites, "neighbours": False}
    found = perform("measure", shared, machine=job.machine, out=out, given=given)
    if own:
        for record in found.inputs.values():
            record["in_memory"] = record["kind"] == "data"
    return found


def _sentence(verdicts: Sequence[Verdict]) -> str:
    """Holds, fails or cannot say, and why."""
    said = overall(verdicts)
    if said == HOLDS:
        return f"Holds: all {len(verdicts)} rules are met."
    decided = [one for one in verdicts if one["outcome"] == said]
    broken = "is broken" if len(decided) == 1 else "are broken"
    words = broken if said == FAILS else "cannot be decided on this data"
    first = decided[0]
    ends = between(first["low"], first["high"]) or "no interval"
    value = "nothing measured" if first["value"] is None else f"{number(first['value'])} ({ends})"
    place = f"{'' if len(decided) == 1 else 'first '}“{first['rule']}” at {first['site']} with {value}"
    return f"{said.capitalize()}: {len(decided)} of {len(verdicts)} rules {words}, {place}."


def judged(verdicts: Sequence[Verdict]) -> Story:
    """One line per rule and site."""
    body = [
        [
            f"{one['model']} {one['site']}".strip(),
            one["rule"],
            number(one["value"]),
            between(one["low"], one["high"]),
            one["outcome"],
        ]
        for one in verdicts
    ]
    return Story([Table(("site", "rule", "value", "95 % interval", "outcome"), body, text=2)])


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0, 1, 2: holds, fails, cannot say."""
    return OUTCOMES.index(overall(verdicts))


STUDY = Study(
    GateSettings,
    measure=measure,
    judged=judged,
    exit_code=exit_code,
    subject=lambda settings: f"{Path(settings.first).name}-{Path(settings.second).name}",
    machine=RUNS_MODEL,
    help="""
May this be released? Equivalence tests between an original and its fine-tune, port or quantised form.

Exits with 0 if every rule holds, 1 if one fails, 2 if the data cannot say (or the command is wrong).

Examples:
  anisoscope gate sentence-transformers/all-MiniLM-L6-v2 tuned/ --data texts/
  anisoscope gate runs/released runs/candidate --rules gate.toml --markdown summary.md
  anisoscope gate old.npy new.npy
""",
)
