"""What a check may look at: the runs of a figure, by group, under the names that the paper uses.

A run belongs to the group that its recipe is named after (`tokens`, `speech`, …). A model answers to its name without
the owner, and to the names of those it may stand for. `sites` says what counts as a layer: `ours` keeps the raw output
of every block apart from what a final norm makes of the last one; `library` is the list that transformers returns as
`hidden_states`, where the normed state takes the place of the last raw one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from anisoscope.runs.table import Row, is_embedding, is_part, listed_by_library

if TYPE_CHECKING:
    from anisoscope.runs.store import Run

Sites = Literal["raw", "norms", "all"]


def short_name(model: str) -> str:
    """A model without its owner and its revision.

    >>> short_name("stand-in/gpt2"), short_name("EleutherAI/pythia-70m@step512")
    ('gpt2', 'pythia-70m')
    """
    return model.rpartition("/")[2].partition("@")[0]


@dataclass(frozen=True)
class Evidence:
    """The runs of a figure with their groups.

    - `stands_for`: by model, the models of the paper whose place it may take where they are missing.
    - `convention`: whose list of layers counts; `p_values`: whose test of a correlation.
    """

    runs: Sequence[tuple[str, Run]]
    stands_for: Mapping[str, Sequence[str]] = field(default_factory=dict)
    convention: Literal["ours", "library"] = "ours"
    p_values: Literal["permutation", "asymptotic"] = "permutation"

    def models(self, group: str | None = None) -> list[str]:
        """Short names of the models of a group, in order."""
        found = (row.model for name, run in self.runs if group in (None, name) for row in run.rows() if row.model)
        return list(dict.fromkeys(map(short_name, found)))

    def wanted(self, names: Iterable[str] | None, *, group: str | None = None, extends: bool = False) -> list[str]:
        """The models that are meant: by name, else (`extends`) those that stand for them; without names, the group."""
        there = self.models(group)
        if names is None:
            return there
        found = [name for name in names if name in there]
        if found or not extends:
            return found
        return [model for model in there if set(self.stands_for.get(model, ())) & set(names)]

    def found(self, metric: str, **wanted: object) -> list[Row]:
        """The measured rows of a metric of all runs, in order; keyword arguments select by column."""
        return [row for _, run in self.runs for row in run.rows(metric=metric, **wanted) if row.value is not None]

    def rows(self, metric: str, *, model: str, site: str = "*") -> list[Row]:
        """The measured rows of a metric of one model at sites that match a pattern, in order."""
        rows = self.found(metric, positions="all", head=None)
        return [row for row in rows if short_name(row.model) == model and fnmatchcase(row.site, site)]

    def layers(self, model: str, *, sites: Sites = "raw", site: str = "*") -> list[Row]:
        """The layers of a model, in order: raw states, what norms make of them, or all that is listed."""
        rows = [row for row in self.rows("mean_cosine", model=model) if row.at is None and _is_layer(row.site)]
        if self.convention == "library":
            rows = listed_by_library(rows)
        elif sites != "all":
            rows = [row for row in rows if after_norm(row) == (sites == "norms")]
        return [row for row in rows if fnmatchcase(row.site, site)]


def _is_layer(site: str) -> bool:
    """Whether a site is a state along the model: no matrix, no vector of a whole text, no part of a block."""
    return not ("vocabulary" in site or is_embedding(site) or is_part(site))


def after_norm(row: Row) -> bool:
    """Whether a site is what a norm makes of the raw state before it."""
    return row.site.endswith("norm")


def value_of(row: Row) -> float:
    assert row.value is not None
    return row.value


def at_last_step(rows: Sequence[Row]) -> list[Row]:
    """Of rows along a training, those of its last step."""
    last = max((row.step or 0 for row in rows), default=0)
    return [row for row in rows if (row.step or 0) == last]


def interval(row: Row) -> str:
    """`0.150 (0.130 … 0.171)`."""
    if row.low is None or row.high is None:
        return f"{value_of(row):.3f}"
    return f"{value_of(row):.3f} ({row.low:.3f} … {row.high:.3f})"
