"""The recipes: which figures there are, which runs they need, what the papers say of them.

They are written in the TOML files of the folder `recipes`: `runs`, the figures (`layers`, `block`, `training`,
`rebuttal`), what stands in for a published model (`stand_ins`), and real weights of the same families (`local`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from anisoscope.errors import UsageError
from anisoscope.models.catalogue import figure_order

FOLDER = Path(__file__).with_name("recipes")
_FIGURES = ("layers", "block", "training", "rebuttal")
_OF_STATEMENT = ("quote", "section", "said_by", "about", "check")


@dataclass(frozen=True)
class Statement:
    """What a paper says of a figure, and the check that tests it.

    - `quote`: the paper's words, or, where `said_by` is `picture`, what its figure shows in words of ours.
    - `about`: which part of the quote is tested, and how a vague word is read.
    """

    quote: str
    section: str
    check: str
    said_by: Literal["text", "picture"] = "text"
    about: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One figure's recipe.

    - `draw`: functions of `report.figures`, as `module.function`.
    - `together`: they take all runs at once, not one after the other.
    - `modelless`: nothing published is needed, so no scale makes it a stand-in.
    - `by_input`: its statements are tested for each experiment of its runs.
    - `options`: of the functions; a `protocol` among them becomes that of the folder.
    """

    name: str
    title: str
    caption: str
    runs: tuple[str, ...]
    draw: tuple[str, ...]
    together: bool = False
    modelless: bool = False
    by_input: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class LocalModel:
    """Real weights that may stand under the figures of some runs; `own` if they are the paper's own.

    - `stands_for`: the models of the paper whose statements it may be held against where those are missing.
    - `data`: what it reads in place of the figure's data, below the folder of models; not at hand without it.
    """

    id: str
    runs: tuple[str, ...]
    about: str
    own: bool = False
    stands_for: tuple[str, ...] = ()
    data: str = ""

    @property
    def mark(self) -> str:
        return "the paper's own model" if self.own else "another model of the family"


@cache
def read(name: str) -> dict[str, Any]:
    """One file of recipes."""
    with (FOLDER / f"{name}.toml").open("rb") as stream:
        return tomllib.load(stream)


def runs() -> dict[str, dict[str, Any]]:
    """The recipes of runs by name."""
    return read("runs")["runs"]


def stand_ins() -> dict[str, dict[str, Any]]:
    """How each stand-in is made, by the short name of the model."""
    return read("stand_ins")["stand_ins"]


def data(kind: str) -> dict[str, str]:
    """The paper's data of a kind, and what may take its place."""
    return read("runs")["data"][kind]


@cache
def local_models() -> tuple[LocalModel, ...]:
    """Real weights of the same families, by file `local`."""
    return tuple(
        LocalModel(**{**one, "runs": tuple(one["runs"]), "stands_for": tuple(one.get("stands_for", ()))})
        for one in read("local")["models"]
    )


@cache
def figures() -> tuple[Figure, ...]:
    """All figures of both papers, in the order of their numbers."""
    found = [_figure(written) for name in _FIGURES for written in read(name)["figures"]]
    return tuple(sorted(found, key=lambda figure: figure_order(figure.name)))


def _figure(written: Mapping[str, Any]) -> Figure:
    statements = tuple(
        Statement(
            **{name: each[name] for name in _OF_STATEMENT if name in each},
            options={name: value for name, value in each.items() if name not in _OF_STATEMENT},
        )
        for each in written.get("statements", ())
    )
    draw = written["draw"]
    fields = {**written, "runs": tuple(written["runs"]), "statements": statements}
    return Figure(**{**fields, "draw": (draw,) if isinstance(draw, str) else tuple(draw)})


def choose(names: Sequence[str]) -> list[Figure]:
    """The figures of these names; `6` stands for 6a and 6b, no name for all.

    >>> [figure.name for figure in choose(["6", "m2"])]
    ['6a', '6b', 'M2']
    """
    chosen: list[Figure] = []
    for name in names:
        wanted = name.lower().removeprefix("figure").strip("_- ")
        found = [figure for figure in figures() if figure.name.lower() in (wanted, f"{wanted}a", f"{wanted}b")]
        if not found:
            known = ", ".join(figure.name for figure in figures())
            raise UsageError("no figure of the papers has this name", got=name, expected=known)
        chosen += found
    unique = {figure.name: figure for figure in chosen}
    return list(unique.values()) if names else list(figures())
