"""Variants of attention, or other trainings, side by side: what each costs and what it does to the geometry.

Each **arm** is one way to train: a kind of attention (`anisoscope.models.attention_kinds`), an objective (`mlm` and
`headless` on a BERT, `clm` and `headless_clm` on a GPT-2, at the same number of tokens), or any recipe of a plan. All
arms share data, seeds, sizes and steps unless the plan says otherwise; all variants of a seed share their initial
weights and every window of text. The last checkpoint of each is measured on the same documents: mean cosine by layer,
sharpness of attention, drift of queries and keys. What an arm changes is said by differences to the control, the first
arm, seed by seed (`rows`).

Trainings go on where they were killed, seed by seed, so that all arms of the first seed are there first; what has been
measured is kept too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from anisoscope.errors import UsageError
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Seeds, Settings, nearest, option
from anisoscope.runs.study import Findings, Study
from anisoscope.studies.variants.story import story
from anisoscope.training.recipe import Recipe, read_toml

KINDS = ("softmax", "softmax_one", "sigmoid", "cosine", "query_centred", "gated", "no_bias")
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {kind: {"attention": kind} for kind in KINDS},
    "objectives": {
        "mlm": {"arch": "bert", "objective": "mlm"},
        "clm": {"arch": "gpt2", "objective": "clm"},
        "headless": {"arch": "bert", "objective": "headless"},
        "headless_clm": {"arch": "gpt2", "objective": "headless"},
    },
}
SHARED = ("data", "data_sha256", "seeds", "steps")  # fields of a recipe that are settings of their own here


class VariantsSettings(Settings):
    """What `anisoscope variants` is asked."""

    data: list[str] = option("Text to train on (repeat the option).", short="-d", paths=True, min_length=1)
    compare: Literal["attention", "objectives"] = option("Kinds of attention, or objectives.", "attention")
    plan: str | dict[str, dict[str, Any]] | None = option(
        "TOML file with a table of recipe fields for each arm, the control first.", None
    )
    arms: list[str] = option("Only these arms, the control first: softmax,gated.", [], commas=True)
    steps: int = option("Steps of each training.", 4096, ge=1, le=10**9)
    seeds: Seeds = option("Seeds of each arm, as 0,1,2 or 0-4.", [0, 1, 2], min_length=1)
    recipe: dict[str, Any] = option("Fields of every arm's recipe, as hidden=96; see `pretrain --help`.", {})
    texts: list[str] = option("Text to measure on; what the package carries without it.", [], paths=True)
    limit: int | None = option("Documents to measure on.", 64, ge=2)

    @field_validator("plan", mode="before")
    @classmethod
    def _read_plan(cls, given: Any) -> Any:
        """The arms of a plan are part of the settings: its file may change later."""
        if not isinstance(given, str | Path):
            return given
        arms = read_toml(Path(given))
        if not arms or not all(isinstance(table, dict) for table in arms.values()):
            raise UsageError(
                "this is not a plan of arms", where=given, expected="a table of recipe fields for each arm"
            )
        return arms

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.chosen()
        return self

    def known(self) -> dict[str, dict[str, Any]]:
        """All arms that there are, by name."""
        return self.plan if isinstance(self.plan, dict) else ARMS[self.compare]

    def chosen(self) -> dict[str, Recipe]:
        """The recipe of each arm, for all seeds."""
        known = self.known()
        for arm in self.arms:
            if arm not in known:
                hint = nearest(arm, known)[2:] or None
                raise UsageError("there is no such arm", got=arm, expected=", ".join(known), do=hint)
        chosen = {arm: known[arm] for arm in self.arms or known}
        _check_fields(self.recipe, chosen)
        common = {**self.recipe, "data": self.data, "seeds": self.seeds, "steps": self.steps}
        return {arm: Recipe.check({**common, **fields}, command=arm) for arm, fields in chosen.items()}


def _check_fields(recipe: dict[str, Any], arms: dict[str, dict[str, Any]]) -> None:
    """No arm may set what all of them share, and a field that every arm sets cannot be given to all of them."""
    for where, fields in (("recipe", recipe), *arms.items()):
        for name in SHARED:
            if name in fields:
                raise UsageError(f"all arms share {name!r}", where=where, got=fields[name], do=f"give --{name} instead")
    for name in recipe:
        if all(name in fields for fields in arms.values()):
            raise UsageError("every arm sets this field itself", where="recipe", got=name, do="leave it out")


def measure(job: Job) -> Findings:
    """Train what is not trained, measure what is not measured, and compare the arms."""
    from anisoscope.studies.variants.rows import averages, block_rows, comparable, differences, verdict
    from anisoscope.studies.variants.trained import arm_rows, train_arms

    recipes = job.settings.chosen()
    folder = train_arms(job, recipes)
    rows = [row for arm, recipe in recipes.items() for row in arm_rows(job, arm, recipe, folder)]
    control = next(iter(recipes))
    rows = [*block_rows(rows), *rows]
    changes = comparable(differences(rows, control=control), recipes, control=control)
    rows = [*averages(rows), *changes, *rows]
    return Findings(
        rows,
        verdict(rows, control=control),
        protocol={"intervals": "Student's t over seeds", "measured": "the last checkpoint of each training"},
        model={arm: {"recipe": recipe.as_dict()} for arm, recipe in recipes.items()},
    )


STUDY = Study(
    VariantsSettings,
    measure=measure,
    story=story,
    subject=lambda settings: "plan" if settings.plan else settings.compare,
    machine=("device", "batch_tokens", "threads"),
    help="""
Train variants of attention (or objectives, or the arms of a plan) side by side and measure their geometry.

Same data, seeds, sizes and steps for all; intervals over seeds. Kill it and repeat the command to go on. A plan is a
TOML file with a table for each arm, such as [narrow] hidden = 64 and [wide] hidden = 128; the first is the control.

Examples:
  anisoscope variants --data enwik8 --steps 4096 --seeds 0,1,2 --out variants
  anisoscope variants --data enwik8 --arms softmax,gated,query_centred --recipe layers=2 --recipe hidden=64
  anisoscope variants --data enwik8 --compare objectives --out objectives
  anisoscope variants --data enwik8 --plan widths.toml --out widths
""",
)
