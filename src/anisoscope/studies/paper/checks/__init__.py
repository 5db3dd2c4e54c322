"""What the papers say, tested: a statement names a check, and a check could fail.

A check has three parts. `read` takes what it is about from the runs, and gives None where they do not hold it. `judge`
decides from that alone. `null` replaces it by what chance would have shown at the same heads, layers, steps and seeds.
How often a check passes by chance is then counted, by judging draws of its null:

    seen = carry_out("both_directions", evidence, {})
    seen.holds, seen.words, seen.chance        # True, "41 heads of common … direction …", 0.002

A check without a null says why it has none: a level that is described is not a test of chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from anisoscope.studies.paper.checks.evidence import Evidence

DRAWS = 1000
A_LEVEL = "not a test of chance: a level"  # why a check has no null


@dataclass(frozen=True)
class Seen:
    """Whether a statement holds (missing: the runs do not show it), the numbers, and how easily it would pass.

    - `chance`: the share of draws of the null that pass; missing where there is no null.
    - `about_chance`: the same in words, or why there is no null.
    """

    holds: bool | None
    words: str
    chance: float | None = None
    about_chance: str = ""


NOTHING = Seen(None, "the runs do not hold what this is about")


@dataclass(frozen=True)
class Check:
    """`read` from the runs, `judge` what was read, `null`: what chance would have shown, or `without_null`: why not."""

    read: Callable[..., Any]
    judge: Callable[[Any], Seen]
    null: Callable[[Any, np.random.Generator], Any] | None = None
    without_null: str = "not a test of chance"


def carry_out(name: str, evidence: Evidence, options: Mapping[str, Any]) -> Seen:
    """Carry out a check by its name."""
    check = registry()[name]
    read = check.read(evidence, **options)
    if read is None:
        return NOTHING
    seen = check.judge(read)
    if check.null is None:
        return replace(seen, about_chance=check.without_null)
    share = passing_share(check, read)
    return replace(seen, chance=share, about_chance=f"would pass by chance: {percent(share)}")


def passing_share(check: Check, read: Any, *, draws: int = DRAWS, seed: int = 0) -> float:
    """The share of draws of the null that a check passes."""
    assert check.null is not None
    generator = np.random.default_rng(seed)
    return sum(bool(check.judge(check.null(read, generator)).holds) for _ in range(draws)) / draws


def percent(share: float) -> str:
    """A share that was counted over `DRAWS` draws.

    >>> percent(0.0), percent(0.034), percent(1.0)
    ('below 0.3 %', '3.4 %', '100 %')
    """
    return f"below {300 / DRAWS:g} %" if share == 0 else f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def registry() -> dict[str, Check]:
    """All checks by name."""
    from anisoscope.studies.paper.checks import block, correlations, depth, heads, levels, rebuttal, trends

    found: dict[str, Check] = {}
    for module in (levels, correlations, depth, block, trends, heads, rebuttal):
        found |= module.CHECKS
    return found
