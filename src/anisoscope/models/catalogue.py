"""The models of the two papers: where they are, what they read, which figures they are in, what to expect from them.

The facts are in `catalogue.toml`. Nothing here imports torch or transformers: listing and completion are instant.

>>> lookup("GPT-2").id, lookup("openai-community/gpt2").label
('gpt2', 'GPT-2')
>>> suggest("bert-base-uncasd")
['bert-base-uncased']
>>> [checkpoint.revision for checkpoint in series("EleutherAI/pythia-70m", steps="paper")][:3]
['step0', 'step7000', 'step14000']
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anisoscope.errors import UsageError
from anisoscope.models.locate import has_weights, in_cache, in_mirror

_FACTS = Path(__file__).with_name("catalogue.toml")

# The start and 28 checkpoints after it, of seeds 0 to 4. The grid is inferred, from the repositories that were seen and
# from that number, which the authors give.
MULTIBERT_STEPS = (0, *range(20_000, 200_001, 20_000), *range(300_000, 2_000_001, 100_000))
MULTIBERT_SEEDS = range(5)
# 154 revisions: the start, powers of two up to 512, every thousandth step.
PYTHIA_STEPS = (0, *(2**power for power in range(10)), *range(1000, 143_001, 1000))
# The 21 of Machina & Mercer's published code: twentieths of the training, rounded down to thousands.
PYTHIA_PAPER_STEPS = tuple(part * 143 // 20 * 1000 for part in range(21))


@dataclass(frozen=True)
class Entry:
    """One model of the papers.

    - `figures`: of the first paper by number, of the rebuttal as M1 to M4.
    - `data`: the data set of the paper, as its name on the hub.
    - `layers`: blocks of each stack (`encoder`, `decoder`, `stage.2`, …; "" where there is one); `width`: d at the end.
    - `series`: `multiberts` or `pythia`, if checkpoints of its training are published.
    - `remote_code`: whether opening it runs code of its repository.
    - `our_choice`: what the paper does not name and was chosen here (a size, a training); empty if it names the model.
    """

    id: str
    label: str
    family: str
    modality: str
    figures: tuple[str, ...]
    data: str
    layers: dict[str, int]
    width: int
    aliases: tuple[str, ...] = ()
    series: str | None = None
    remote_code: bool = False
    our_choice: str = ""
    notes: str = ""

    @property
    def depth(self) -> int:
        """The number of blocks of all stacks."""
        return sum(self.layers.values())


@dataclass(frozen=True)
class Checkpoint:
    """One step of a published training: a repository, and a revision of it where its steps are revisions."""

    step: int
    model: str
    revision: str | None = None
    seed: int | None = None


@cache
def _entries() -> tuple[Entry, ...]:
    with _FACTS.open("rb") as stream:
        facts = tomllib.load(stream)
    return tuple(
        Entry(**{**each, "data": facts["data"][each["data"]], "figures": tuple(each["figures"])})
        for written in facts["models"]
        for each in _members(written)
    )


def _members(written: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """One table for each member of a family whose id has a placeholder; the table itself otherwise."""
    shared = {key: value for key, value in written.items() if key != "members"}
    shared["aliases"] = tuple(written.get("aliases", ()))
    members = written.get("members")
    if members is None:
        yield shared
        return
    for value in members["layers"] if "layers" in members else range(members["count"]):
        filled = {field: shared[field].format(**{members["name"]: value}) for field in ("id", "label")}
        if "layers" in members:
            filled |= {"layers": {"": members["layers"][value]}, "width": members["widths"][value]}
        yield shared | filled


def catalogue(*, modality: str | None = None, figure: str | None = None) -> list[Entry]:
    """All models of the papers, or those of a modality or figure."""
    return [
        entry
        for entry in _entries()
        if (modality is None or entry.modality == modality) and (figure is None or figure in entry.figures)
    ]


def lookup(name: str) -> Entry:
    """The entry of a hub id, an alias, a label or a checkpoint of a series, in any case."""
    wanted = re.sub(r"-step_\d+k$", "", name.strip().lower())
    for entry in _entries():
        if wanted in _names(entry):
            return entry
    close = suggest(name)
    raise UsageError(
        "not a model of the catalogue",
        got=name,
        do=f"did you mean {' or '.join(close)}?" if close else "see: anisoscope models",
    )


def figure_order(name: str) -> tuple[bool, int, str]:
    """The key that sorts figures by number, those of the second paper last."""
    return name.startswith("M"), int("".join(filter(str.isdigit, name)) or 0), name


def suggest(name: str) -> list[str]:
    """At most three hub ids of the catalogue whose id, alias or label looks like a misspelt name."""
    known = {written: entry.id for entry in _entries() for written in _names(entry)}
    close = difflib.get_close_matches(name.strip().lower(), known, n=6, cutoff=0.75)
    return list(dict.fromkeys(known[match] for match in close))[:3]


def _names(entry: Entry) -> list[str]:
    """What an entry answers to, in lower case: id, aliases, label, and the id without its owner."""
    names = [entry.id, *entry.aliases, entry.label, entry.id.rpartition("/")[2]]
    return [name.lower() for name in names]


def same_model(name: str) -> tuple[str, ...]:
    """The hub ids of one model: `name` first, then its others, since the hub moved some under an owner.

    >>> same_model("openai-community/gpt2")
    ('openai-community/gpt2', 'gpt2')
    """
    for entry in _entries():
        ids = (entry.id, *entry.aliases)
        if name in ids:
            return (name, *(other for other in ids if other != name))
    return (name,)


def at_hand(wanted: Entry | Checkpoint, models_dir: str | Path | None = None) -> Path | None:
    """The folder of a model on this machine, in the mirror or in the hub's cache; None if it is in neither."""
    name, revision = (wanted.id, None) if isinstance(wanted, Entry) else (wanted.model, wanted.revision)
    for each in same_model(name):
        folder = in_mirror(each, revision=revision, models_dir=models_dir)
        if folder is not None and has_weights(folder):
            return folder
        folder = in_cache(each, revision=revision)
        if folder is not None:
            return folder
    return None


def series(name: str, *, seeds: Iterable[int] = (0,), steps: str | Sequence[int] = "all") -> list[Checkpoint]:
    """The published checkpoints of a training, by seed and step.

    `name` is `multiberts` (with `seeds`, 0 to 4) or a Pythia model, plain or deduplicated. `steps`: `all`, `paper` (the
    21 of Machina & Mercer for Pythia, all for MultiBERTs), or a choice, each of which must exist.
    """
    if re.fullmatch(r"(google/)?multiberts?(-seed_\d+)?", name.lower()):
        written = re.search(r"\d+$", name)
        chosen = [int(written[0])] if written else sorted(set(seeds))
        return [checkpoint for seed in chosen for checkpoint in _multibert(seed, steps)]
    found = re.fullmatch(r"(?:eleutherai/)?(pythia-[\d.]+[mb])(-deduped)?", name.lower())
    if found and f"EleutherAI/{found[1]}" in {entry.id for entry in _entries()}:
        model = f"EleutherAI/{found[1]}{found[2] or ''}"
        grid = _choose(PYTHIA_STEPS, steps, paper=PYTHIA_PAPER_STEPS)
        return [Checkpoint(step, model, f"step{step}") for step in grid]
    raise UsageError(
        "no series of checkpoints is known by this name",
        got=name,
        expected="embedded | multiberts | " + " | ".join(entry.id for entry in _entries() if entry.series == "pythia"),
        do="name a folder of checkpoint-*, a quoted glob or a TOML list of your own",
    )


def _multibert(seed: int, steps: str | Sequence[int]) -> list[Checkpoint]:
    if seed not in MULTIBERT_SEEDS:
        raise UsageError("only seeds 0 to 4 of the MultiBERTs have checkpoints of their training", got=f"seed {seed}")
    grid = _choose(MULTIBERT_STEPS, steps, paper=MULTIBERT_STEPS)
    return [Checkpoint(step, f"google/multiberts-seed_{seed}-step_{step // 1000}k", seed=seed) for step in grid]


def _choose(grid: Sequence[int], steps: str | Sequence[int], *, paper: Sequence[int]) -> Sequence[int]:
    if isinstance(steps, str):
        if steps not in ("all", "paper"):
            raise UsageError("unknown choice of steps", got=steps, expected="all | paper | a list of steps")
        return grid if steps == "all" else paper
    absent = sorted(set(steps) - set(grid))
    if absent:
        nearest = sorted({min(grid, key=lambda step: abs(step - wanted)) for wanted in absent})
        raise UsageError("no checkpoint was published at these steps", got=absent, do=f"nearest: {nearest}")
    return sorted(set(steps))
