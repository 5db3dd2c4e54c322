"""Each check says yes where it should, no where it should, and nothing where there is nothing to tell it by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks import CHECKS, check


@pytest.fixture
def run(tmp_path: Path):
    """A run of the rows and arrays that a test makes up."""
    made = iter(range(10))

    def write(rows: list[Row], arrays: dict[str, np.ndarray] | None = None) -> list[Run]:
        return [
            write_run(tmp_path / f"run-{next(made)}", command="x", settings={}, rows=rows, protocol={}, arrays=arrays)
        ]

    return write


def cosine(site: str, value: float, *, model: str = "m", width: float = 0.01, **more: Any) -> Row:
    about = {"metric": "mean_cosine", **more}
    return Row(model=model, site=site, value=value, low=value - width, high=value + width, **about)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("every", {"metric": "mean_cosine", "above": 0.1}),
        ("last_site", {"model": "m", "above": 0.1}),
        ("ordered", {"metric": "mean_cosine", "higher": ["a"], "lower": ["b"]}),
        ("at_start", {"metric": "mean_cosine", "site": ["query"], "above": 0.1}),
        ("above_isotropic", {}),
        ("most_significant", {"metric": "spearman_drift_norm_p"}),
        ("falls_with_depth", {"model": "m"}),
        ("falls_at_norm", {"model": "m"}),
        ("output_above_input", {}),
        ("crosses", {}),
        ("narrows", {}),
        ("along", {"metric": "entropy", "by": "step"}),
        ("first_half_lower", {"metric": "entropy"}),
        ("leaves_null", {}),
        ("both_directions", {}),
        ("plane_agrees", {"plane": "keys"}),
    ],
)
def test_nothing_seen_is_not_a_no(name: str, options: dict[str, Any], run) -> None:
    assert check(name, run([Row(metric="other", value=1.0)]), options).holds is None


def test_all_checks_are_tried_above() -> None:
    mark = next(mark for mark in test_nothing_seen_is_not_a_no.pytestmark if mark.name == "parametrize")  # pyright: ignore
    assert {case[0] for case in mark.args[1]} == set(CHECKS)


def test_a_level_must_hold_with_the_interval(run) -> None:
    near, clear = run([cosine("block.0", 0.105)]), run([cosine("block.0", 0.12)])
    options = {"metric": "mean_cosine", "above": 0.1}
    assert [check("every", found, options).holds for found in (near, clear)] == [False, True]
    assert check("every", clear, {"metric": "mean_cosine", "below": 0.1}).holds is False


def test_models_and_sites_are_chosen(run) -> None:
    found = run([cosine("decoder.block.0", 0.9, model="x/a"), cosine("block.0", 0.0, model="x/b")])
    decoder = {"metric": "mean_cosine", "above": 0.5, "model": "a", "site": "decoder.block.*"}
    assert check("every", found, decoder).holds is True
    assert check("every", found, {"metric": "mean_cosine", "above": 0.5}).holds is False
    assert check("every", found, {"metric": "mean_cosine", "above": 0.5, "except": ["b"]}).holds is True


def test_the_last_block_counts_not_the_norm_after_it(run) -> None:
    found = run([cosine("block.0", 0.1, layer=0), cosine("block.1", 0.9, layer=1), cosine("final_norm", 0.2)])
    seen = check("last_site", found, {"model": "m", "above": 0.8})
    assert seen.holds is True
    assert "block.1" in seen.words


@pytest.mark.parametrize(("values", "holds"), [((0.8, 0.2), True), ((0.2, 0.8), False), ((0.5, 0.495), False)])
def test_falling_means_intervals_apart(values: tuple[float, float], holds: bool, run) -> None:
    found = run([cosine("stage.0", values[0]), cosine("stage.1", values[1])])
    assert check("falls_with_depth", found, {"model": "m"}).holds is holds


def test_most_is_more_than_half(run) -> None:
    rows = [Row(metric="p", model=f"x/m{k}", value=p) for k, p in enumerate((0.01, 0.02, 0.5, 0.04))]
    seen = check("most_significant", run(rows), {"metric": "p"})
    assert seen.holds is True
    assert "above: m2" in seen.words
    assert check("most_significant", run(rows[2:]), {"metric": "p"}).holds is False


@pytest.mark.parametrize("down", [False, True])
def test_along_reads_ends_not_the_middle(down: bool, run) -> None:
    rows = [Row(metric="entropy", site="block.0", step=step, value=v) for step, v in ((0, 2.0), (5, 9.0), (10, 3.0))]
    assert check("along", run(rows), {"metric": "entropy", "by": "step", "down": down}).holds is not down


def test_along_takes_magnitudes_and_heads(run) -> None:
    rows = [
        Row(metric="query_key_dot", site="block.0.head.0", head=0, step=step, value=v)
        for step, v in ((0, 0.1), (9, -4.0))
    ]
    options = {"metric": "query_key_dot", "by": "step", "heads": True}
    assert check("along", run(rows), options).holds is False
    assert check("along", run(rows), {**options, "absolute": True}).holds is True
    assert check("along", run(rows), {**options, "heads": False}).holds is None


def heads(values: dict[int, list[float]], seed: int = 0) -> tuple[list[Row], dict[str, np.ndarray]]:
    """cos(Q̄, K̄) of some heads at each step; d_head = 100, so that the null reaches 0.196."""
    rows = [
        Row(metric="query_key_cosine", site=f"block.0.head.{head}", head=head, step=step, value=value, seed=seed)
        for step, line in values.items()
        for head, value in enumerate(line)
    ]
    count = len(next(iter(values.values())))
    return rows, {f"seed-{seed}/block.0/query_mean": np.zeros((len(values), count, 100))}


def test_alignment_is_held_against_its_null(run) -> None:
    left = run(*heads({0: [0.1, -0.1], 9: [0.19, -0.5]}))
    stayed = run(*heads({0: [0.3, 0.0], 9: [0.1, 0.3]}))
    assert check("leaves_null", left, {}).holds is True
    assert check("leaves_null", stayed, {}).holds is False
    assert "0 → 1 of 2" in check("leaves_null", left, {}).words


def test_every_seed_must_leave(run) -> None:
    (first, one), (second, two) = heads({0: [0.0], 9: [0.5]}, 0), heads({0: [0.0], 9: [0.1]}, 1)
    both = run(first + second, one | two)
    assert check("leaves_null", both, {}).holds is True
    assert check("leaves_null", both, {"every_seed": True}).holds is False


def test_both_directions(run) -> None:
    assert check("both_directions", run(*heads({9: [0.5, -0.5]})), {}).holds is True
    assert check("both_directions", run(*heads({9: [0.5, 0.5]})), {}).holds is False


def test_the_plane_must_keep_the_sign(run) -> None:
    rows, arrays = heads({0: [0.0, 0.0], 9: [0.5, -0.5]})
    query = np.zeros((2, 2, 3, 2))  # steps, heads, (value, low, high), plane
    query[1, :, :, 0] = 1.0
    turned = query * np.array([1.0, -1.0])[:, None, None]  # the second head's key points the other way
    for key, holds in ((turned, True), (query, False)):
        planes = {"seed-0/block.0/keys/query": query, "seed-0/block.0/keys/key": key}
        assert check("plane_agrees", run(rows, arrays | planes), {"plane": "keys"}).holds is holds


def test_isotropic_pairs_of_the_same_dimension(run) -> None:
    rows = [cosine("a", 0.2), Row(model="m", site="a", metric="dimension", value=768.0)]
    low = [cosine("a", 0.2), Row(model="m", site="a", metric="dimension", value=16.0)]
    assert [check("above_isotropic", run(some), {}).holds for some in (rows, low)] == [True, False]


def test_a_fixed_point_that_is_not_there(run) -> None:
    there = Row(metric="fixed_point", site="output", value=27.7, low=27.6, high=27.8)
    absent = Row(metric="fixed_point", site="output", note="no crossing in [0, 60]")
    assert check("crosses", run([there]), {}).words == "N* = 27.7 (27.6 … 27.8)"
    assert check("crosses", run([absent]), {}).holds is False


def test_output_above_input_at_every_drift(run) -> None:
    rows = [cosine(site, value, at=at) for at in (0.0, 1.0) for site, value in (("input", at), ("output", at + 0.01))]
    assert check("output_above_input", run(rows), {}).holds is True
    assert check("output_above_input", run([*rows[:3], cosine("output", 0.5, at=1.0)]), {}).holds is False
