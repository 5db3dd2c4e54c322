"""Queries, keys and attention along a training: what must not pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks import carry_out
from studies.paper.worlds import evidence, means

D = 100  # unrelated means stay within about ±0.196


def aligned(cosines: Any, *, seed: int = 0, steps: Any = None) -> dict[str, np.ndarray]:
    """Mean queries and keys with given cosines (layers, steps, heads)."""
    cosines = np.asarray(cosines, float)
    query, key = np.zeros((*cosines.shape, D)), np.zeros((*cosines.shape, D))
    query[..., 0] = 1
    key[..., 0], key[..., 1] = cosines, np.sqrt(1 - cosines**2)
    return means(query, key, seed=seed, steps=steps)


def seen(name: str, cosines: Any, *, steps: Any = None, **options: Any) -> Any:
    return carry_out(name, evidence([], aligned(cosines, steps=steps)), options)


def test_two_heads_of_many_are_no_two_directions() -> None:
    end = np.zeros(40)
    end[:2] = 0.5, -0.5  # one on either side, as chance would have it
    assert seen("both_directions", [[np.zeros(40), end]]).holds is False
    end[:20], end[20:] = 0.5, -0.5
    assert seen("both_directions", [[np.zeros(40), end]]).holds is True
    assert seen("both_directions", [[np.zeros(40), np.abs(end)]]).holds is False


def test_almost_all_heads_must_align() -> None:
    start = np.zeros(10)
    assert seen("almost_all_align", [[start, np.array([0.5] * 9 + [0.1])]]).holds is True
    assert seen("almost_all_align", [[start, np.array([0.5] * 6 + [0.1] * 4)]]).holds is False


def test_first_layers_positive_last_negative() -> None:
    cosines = [[[0.0] * 4, [0.8] * 4], [[0.0] * 4, [0.1] * 4], [[0.0] * 4, [0.0] * 4], [[0.0] * 4, [-0.8] * 4]]
    assert seen("layers_direction", cosines, part="first").holds is True
    assert seen("layers_direction", cosines, part="last").holds is True
    assert seen("layers_direction", cosines[::-1], part="first").holds is False
    assert seen("layers_direction", cosines[::-1], part="last").holds is False


def test_a_cosine_that_was_there_from_the_start_is_no_dynamic() -> None:
    assert seen("layers_direction", [[[0.9] * 4, [0.8] * 4]] * 4, part="first").holds is False


@pytest.mark.parametrize(
    ("opposite", "holds"),
    [([0.0, 0.0, 0.0, -0.9], True), ([0.0, -0.9, -0.9, -0.9], False), ([0.0, -0.9, 0.0, -0.9], True)],
)
def test_the_opposite_direction_starts_after_eight_percent(opposite: list[float], holds: bool) -> None:
    cosines = [np.stack([[0.0, 0.9, 0.9, 0.9], opposite], axis=1)]
    assert seen("opposite_starts_late", cosines, steps=[0, 5, 20, 100]).holds is holds


def test_seeds_are_compared_with_heads_concatenated() -> None:
    one = [[[0.0, 0.0], [0.5, 0.5], [0.9, 0.9]], [[0.0, 0.0], [-0.4, -0.4], [-0.8, -0.8]]]
    other = list(reversed(one))
    for second, holds in ((one, True), (other, False)):
        arrays = aligned(one) | aligned(second, seed=1)
        assert carry_out("seeds_agree", evidence([], arrays), {}).holds is holds
    arrays = aligned(one) | aligned(one, seed=1)
    words = carry_out("seeds_agree", evidence([], arrays), {}).words
    assert "+0.90, -0.80" in words  # of the layer as a whole: (2 · 0.9)/2


def test_a_plane_must_keep_the_side_and_show_the_drift() -> None:
    arrays = aligned([[[0.0, 0.0], [0.5, -0.5]]])
    query = np.zeros((2, 2, 3, 2))  # steps, heads, (value, low, high), plane
    query[1, :, :, 0] = 1.0
    turned = query * np.array([1.0, -1.0])[:, None, None]  # the second head's key points the other way
    for key, holds in ((turned, True), (query, False)):
        planes = {"seed-0/block.0/keys/query": query, "seed-0/block.0/keys/key": key}
        found = evidence([], arrays | planes)
        assert carry_out("plane_agrees", found, {"plane": "keys"}).holds is holds
    shrinking = {"seed-0/block.0/keys/query": query[::-1] + 0.1, "seed-0/block.0/keys/key": turned[::-1] + 0.1}
    assert carry_out("plane_agrees", evidence([], arrays | shrinking), {"plane": "keys"}).holds is False


def entropies(*lines: list[float], width: float = 0.0) -> list[Row]:
    return [
        Row(metric="entropy", site=f"block.{i}", layer=i, step=s, value=v, low=v - width, high=v + width)
        for i, line in enumerate(lines)
        for s, v in enumerate(line)
    ]


def test_all_layers_must_decay() -> None:
    options = {"metric": "entropy", "down": True, "need": "all"}
    good, bad = [4.0, 3.0, 2.0], [2.0, 3.0, 2.1]
    assert carry_out("along_training", evidence(entropies(good, good)), options).holds is True
    found = carry_out("along_training", evidence(entropies(good, bad)), options)
    assert found.holds is False
    assert "not so: block.1" in found.words


def test_ends_that_are_not_apart_are_no_decay() -> None:
    options = {"metric": "entropy", "down": True, "need": "all"}
    line = [2.0, 1.95, 1.9]
    assert carry_out("along_training", evidence(entropies(line, width=0.01)), options).holds is True
    assert carry_out("along_training", evidence(entropies(line, width=0.2)), options).holds is False


def test_an_average_that_one_head_carries_is_no_trend() -> None:
    """The mean of both ends grows a hundredfold; three heads of four go down."""
    lines = [[1.0, 0.9, 0.8]] * 3 + [[1.0, 50.0, 400.0]]
    rows = [
        Row(metric="query_key_dot", site=f"block.0.head.{h}", layer=0, head=h, step=s, value=v)
        for h, line in enumerate(lines)
        for s, v in enumerate(line)
    ]
    options = {"metric": "query_key_dot", "heads": True, "absolute": True}
    assert carry_out("along_training", evidence(rows), options).holds is False


def test_magnitudes_grow_on_either_side_of_zero() -> None:
    rows = [
        Row(metric="query_key_dot", site=f"block.0.head.{h}", layer=0, head=h, step=s, value=sign * v)
        for h, sign in enumerate((1, -1))
        for s, v in enumerate((0.1, 1.0, 4.0))
    ]
    options = {"metric": "query_key_dot", "heads": True}
    assert carry_out("along_training", evidence(rows), options).holds is False
    assert carry_out("along_training", evidence(rows), {**options, "absolute": True}).holds is True
