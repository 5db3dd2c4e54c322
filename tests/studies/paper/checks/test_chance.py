"""How often a check passes by chance is what it says: every check with a null, on worlds made without that null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks import passing_share, percent, registry
from anisoscope.studies.paper.checks.evidence import Evidence
from studies.paper.worlds import cosine, evidence, layers, means

Random = np.random.Generator
World = tuple[Evidence, dict[str, Any]]
WORLDS, DRAWS = 200, 20


def any_peaks(draw: Random) -> World:
    rows = [cosine("block.0", value, model=name) for name, value in zip("abcde", draw.random(5), strict=True)]
    return evidence(rows), {"higher": ["a", "b", "c"], "lower": ["d", "e"]}


def any_correlation(draw: Random) -> World:
    rows = layers("a", draw.random(12), drift=draw.random(12)) + layers("b", draw.random(9), drift=draw.random(9))
    return evidence(rows), {"correlated": False, "need": "all"}


def any_two_tests(draw: Random) -> World:
    return evidence(layers("a", draw.random(6), drift=draw.lognormal(0, 2, 6))), {"models": ["a"]}


def any_depth(draw: Random) -> World:
    return evidence(layers("a", draw.random(5))), {"models": ["a"]}


def any_entropy(draw: Random) -> World:
    rows = [Row(metric="entropy", site=f"block.{i}", layer=i, step=9, value=float(draw.random())) for i in range(4)]
    return evidence(rows), {}


def any_training(draw: Random) -> World:
    rows = [
        Row(metric="entropy", site=f"block.{i}", layer=i, step=step, value=float(draw.random()))
        for i in range(2)
        for step in range(4)
    ]
    return evidence(rows), {"metric": "entropy", "down": True, "need": "all"}


def _block(draw: Random, numbers: Callable[[int, int], dict[tuple[str, str], float]]) -> list[Row]:
    return [
        Row(model="bert", site=site, metric=metric, value=value, seed=seed, at=float(at))
        for seed in range(5)
        for at in range(4)
        for (site, metric), value in numbers(seed, at).items()
    ]


def any_drift(draw: Random) -> World:
    rows = _block(draw, lambda seed, at: {("query", "mean_norm"): float(draw.random())})
    return evidence(rows), {"label": "bert", "metric": "mean_norm", "site": ["query"]}


def any_gap(draw: Random) -> World:
    by_draw = 0.01 * draw.standard_normal(5)
    rows = _block(draw, lambda seed, at: {("input", "mean_cosine"): 0.0, ("output", "mean_cosine"): by_draw[seed]})
    return evidence(rows), {"label": "bert"}


def any_growth(draw: Random) -> World:
    names = {
        f"{of}{extreme}_probability": sign for of in ("", "sequence_") for extreme, sign in (("max", 1), ("min", -1))
    }
    rows = _block(
        draw,
        lambda seed, at: {("softmax", name): (1 + at * float(draw.random())) ** sign for name, sign in names.items()},
    )
    return evidence(rows), {"label": "bert"}


def _isotropic(draw: Random, *shape: int) -> np.ndarray:
    return draw.standard_normal(shape)


def any_heads(draw: Random, *, d: int = 24, steps: int = 3, **options: Any) -> World:
    query, key = (_isotropic(draw, 4, steps, 8, d) for _ in range(2))
    return evidence([], means(query, key)), options


def any_onset(draw: Random) -> World:
    query, key = (_isotropic(draw, 4, 3, 8, 24) for _ in range(2))
    return evidence([], means(query, key, steps=[0, 5, 100])), {}


def any_plane(draw: Random) -> World:
    query, key = (_isotropic(draw, 4, 2, 4, 8) for _ in range(2))
    arrays = means(query, key)
    for i in range(4):
        arrays |= {f"seed-0/block.{i}/keys/{side}": _isotropic(draw, 2, 4, 3, 2) for side in ("query", "key")}
    return evidence([], arrays), {"plane": "keys"}


def any_axis(draw: Random) -> World:
    parts = [_isotropic(draw, 1, 2, 3, 3) for _ in range(2)]
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in parts)
    arrays = means(query, key)
    for side, x in (("query", query), ("key", key)):
        arrays[f"seed-0/block.0/union/{side}"] = np.repeat(x[0][:, :, None, :2], 3, axis=2)
    return evidence([], arrays), {}


def any_seeds(draw: Random) -> World:
    arrays: dict[str, np.ndarray] = {}
    for seed in range(2):
        query, key = (_isotropic(draw, 1, 4, 2, 4) for _ in range(2))
        arrays |= means(query, key, seed=seed)
    return evidence([], arrays), {}


def any_bias(draw: Random) -> World:
    names = {"a": 0.1, "b": 0.1, "c": 0.9}
    rows = [cosine("final_norm", value, model=name) for name, value in names.items()]
    for name in names:
        bias = float(draw.random())
        rows += [Row(model=name, site="final_norm", metric=m, value=bias) for m in ("bias_norm", "bias_over_gain")]
    return evidence(rows), {"isotropic": ["a", "b"], "anisotropic": ["c"]}


NULLS: dict[str, Callable[[Random], World]] = {
    "higher_peaks": any_peaks,
    "drift_correlation": any_correlation,
    "tests_disagree": any_two_tests,
    "falls_with_depth": any_depth,
    "first_layers_sharper": any_entropy,
    "along_training": any_training,
    "along_drift": any_drift,
    "output_above_input": any_gap,
    "clearer_over_sequences": any_growth,
    "both_directions": any_heads,
    "almost_all_align": any_heads,
    "layers_direction": lambda draw: any_heads(draw, part="last"),
    "opposite_starts_late": any_onset,
    "plane_agrees": any_plane,
    "drift_on_first_direction": any_axis,
    "seeds_agree": any_seeds,
    "small_bias": any_bias,
}


def test_every_check_has_a_world_or_says_why_it_has_no_null() -> None:
    assert {name for name, check in registry().items() if check.null is not None} == set(NULLS)
    assert all(check.without_null.startswith("not a test of chance") for check in registry().values())


@pytest.mark.parametrize("name", NULLS)
def test_the_stated_chance_is_how_often_a_world_without_the_effect_passes(name: str) -> None:
    check, draw = registry()[name], np.random.default_rng(7)
    passed, stated = [], []
    for world in range(WORLDS):
        found, options = NULLS[name](draw)
        read = check.read(found, **options)
        if read is not None and (holds := check.judge(read).holds) is not None:
            passed.append(holds)
            stated.append(passing_share(check, read, draws=DRAWS, seed=world))
    share = float(np.mean(stated))
    spread = np.sqrt(max(share * (1 - share), 1 / len(passed)) / len(passed))
    assert abs(np.mean(passed) - share) < 4 * spread, (np.mean(passed), share)


@pytest.mark.parametrize(
    ("name", "exact"),
    [("higher_peaks", 1 / 10), ("first_layers_sharper", 1 / 24), ("small_bias", 1 / 3)],  # by counting orders
)
def test_some_rates_are_known_exactly(name: str, exact: float) -> None:
    check = registry()[name]
    found, options = NULLS[name](np.random.default_rng(0))
    share = passing_share(check, check.read(found, **options), draws=2000)
    assert abs(share - exact) < 4 * np.sqrt(exact * (1 - exact) / 2000)


def test_two_directions_by_chance_is_rare_even_among_many_heads() -> None:
    """Some head lies beyond ±1.96/√d on either side almost surely; more than the binomial law allows, rarely."""
    query, key = (np.random.default_rng(1).standard_normal((12, 2, 60, 64)) for _ in range(2))
    check = registry()["both_directions"]
    read = check.read(evidence([], means(query, key)))
    assert read.cosine.shape[1] == 720
    assert passing_share(check, read, draws=400) < 0.02


def test_a_share_of_zero_is_not_called_zero() -> None:
    assert percent(0.0) == "below 0.3 %"
