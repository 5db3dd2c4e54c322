"""Variants of attention, or other trainings, side by side: what each costs and what it does to the geometry.

Each **arm** is one way to train: a kind of attention (`anisoscope.models.attention_kinds`), an objective (`mlm` and
`headless` on a BERT, `clm` and `headless_clm` on a GPT-2, at the same number of tokens), or any recipe of a plan. All
arms share data, seeds, sizes and steps unless the plan says otherwise; all variants of a seed share their initial
weights and every window of text. The last checkpoint of each is measured on the same documents: mean cosine by layer,
sharpness of attention, drift of queries and keys. What an arm changes is given as differences from the control, the
first arm, seed by seed (`rows`).

A plan is a TOML file that holds a whole grid, so that `variants --plan FILE` is all there is to run:

    data = ["enwik8"]                  # any setting of the study; what is written beside --plan goes first
    steps = 300
    seeds = "0-9"
    recipe = { arch = "gpt2", hidden = 64 }
    [arms.healthy]                     # the control, and what each arm changes
    [arms.too_fast]
    learning_rate = 0.12
    seeds = "0-3"                      # fewer than the others, if need be

One training with its measurement is the unit of work: it continues where it was killed, workers of Ray and processes of
torchrun take one each, and all arms of the first seed come first. A training that diverges is a row (`diverged_at`),
not the end of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from anisoscope.errors import UsageError
from anisoscope.inputs.files import read_toml
from anisoscope.runs.job import Job
from anisoscope.runs.settings import MANY, Seeds, Settings, nearest, option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.variants.story import story
from anisoscope.training.recipe import Recipe

KINDS = ("softmax", "softmax_one", "sigmoid", "cosine", "query_centred", "key_centred", "gated", "linear", "no_bias")
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {kind: {"attention": kind} for kind in KINDS},
    "objectives": {
        "mlm": {"arch": "bert", "objective": "mlm"},
        "clm": {"arch": "gpt2", "objective": "clm"},
        "headless": {"arch": "bert", "objective": "headless"},
        "headless_clm": {"arch": "gpt2", "objective": "headless"},
    },
}
SHARED = ("data", "data_sha256", "steps")  # fields of a recipe that are settings of their own here


class VariantsSettings(Settings):
    """What `anisoscope variants` is asked."""

    data: list[str] = option("Text to train on, unless the plan names it.", [], short="-d", paths=True)
    compare: Literal["attention", "objectives"] = option("Kinds of attention, or objectives.", "attention")
    plan: str | dict[str, dict[str, Any]] | None = option(
        "TOML file of a grid: [arms.NAME] tables of recipe fields, the control first, and any of these settings.", None
    )
    arms: list[str] = option("Only these arms, the control first: softmax,gated.", [], commas=True)
    steps: int = option("Steps of each training.", 4096, ge=1, le=10**9)
    seeds: Seeds = option("Seeds of each arm, such as 0,1,2 or 0-4.", [0, 1, 2], min_length=1)
    recipe: dict[str, Any] = option("Fields of every arm's recipe, such as hidden=96; see `pretrain --help`.", {})
    texts: list[str] = option("Text to measure on (default: built-in text).", [], paths=True)
    limit: int | None = option("Documents to measure on.", 64, ge=2, le=MANY)

    @model_validator(mode="before")
    @classmethod
    def _read_plan(cls, given: Any) -> Any:
        """What a plan says is part of the settings: its file may change later. A file of arms alone is one too."""
        if not isinstance(given, Mapping) or not isinstance(given.get("plan"), str | Path):
            return given
        settings = read_toml(Path(given["plan"]))
        settings, arms = (settings, settings.pop("arms")) if "arms" in settings else ({}, settings)
        if not isinstance(arms, dict) or not arms or not all(isinstance(table, dict) for table in arms.values()):
            expected = "a table of recipe fields for each arm, as [arms.NAME]"
            raise UsageError("this is not a plan of arms", where=given["plan"], expected=expected)
        return {**settings, **given, "plan": arms}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.data:
            raise UsageError("no text to train on", do="give --data, or `data` in the plan")
        self.chosen()
        return self

    def known(self) -> dict[str, dict[str, Any]]:
        """All known arms, by name."""
        return self.plan if isinstance(self.plan, dict) else ARMS[self.compare]

    def chosen(self) -> dict[str, Recipe]:
        """The recipe of each arm, for all its seeds."""
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


def trainings(settings: VariantsSettings) -> dict[str, tuple[str, int]]:
    """Arm and seed of every training by its label, the first seed of all arms first."""
    recipes = settings.chosen()
    seeds = dict.fromkeys(seed for recipe in recipes.values() for seed in recipe.seeds)
    return {f"{arm}, seed {seed}": (arm, seed) for seed in seeds for arm in recipes if seed in recipes[arm].seeds}


def collect(job: Job) -> Collected:
    """Train what is not trained and measure what is not measured: all of it, or the one training of a worker."""
    from anisoscope.studies.variants.trained import collect_trainings

    found = trainings(job.settings)
    return collect_trainings(job, found if job.only is None else {job.only: found[job.only]})


def conclude(settings: VariantsSettings, collected: Collected) -> Findings:
    """Compare the arms."""
    from anisoscope.studies.variants.rows import averages, block_rows, comparable, differences, verdict
    from anisoscope.studies.variants.trained import training_rows

    recipes = settings.chosen()
    by_arm = sorted(collected.items(), key=lambda one: list(recipes).index(one[1].about["training"]["arm"]))
    rows = [row for label, part in by_arm for row in training_rows(label, part)]
    control = next(iter(recipes))
    rows = [*block_rows(rows), *rows]
    changes = comparable(differences(rows, control=control), recipes, control=control)
    rows = [*averages(rows), *changes, *rows]
    return Findings(
        rows,
        verdict(rows, control=control),
        protocol={"intervals": "Student's t over seeds", "measured": "the last checkpoint of each training"},
        model={arm: {"recipe": recipe.as_dict()} for arm, recipe in recipes.items()},
        notes=dict.fromkeys(note for part in collected.values() for note in part.about["notes"]),  # pyright: ignore
        gathered=True,
    )


STUDY = Study(
    VariantsSettings,
    collect=collect,
    conclude=conclude,
    labels=lambda settings: list(trainings(settings)),
    story=story,
    subject=lambda settings: "plan" if settings.plan else settings.compare,
    machine=("device", "batch_tokens", "threads", "engine", "address", "workers", "gpus_per_worker"),
    keeps_sums=False,
    help="""
Train variants of attention (or objectives, or the arms of a plan) side by side and measure their geometry.

Same data, seeds, sizes and steps for all; intervals over seeds. If it is killed, repeat the command to continue. A plan
is a TOML file with a table for each arm, such as [arms.narrow] hidden = 64 and [arms.wide] hidden = 128, the control
first; it may also hold data, steps, seeds and recipe. With --engine ray each worker takes one training after the
other, and under torchrun process i of n takes every n-th training.

Examples:
  anisoscope variants --data enwik8 --steps 4096 --seeds 0,1,2 --out variants
  anisoscope variants --data enwik8 --arms softmax,gated,query_centred --recipe layers=2 --recipe hidden=64
  anisoscope variants --data enwik8 --compare objectives --out objectives
  anisoscope variants --plan grid.toml --engine ray --workers 8 --out grid
  torchrun --nproc-per-node 4 -m anisoscope variants --plan grid.toml --threads 1 --out grid
""",
)
