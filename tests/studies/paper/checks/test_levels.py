"""Levels, orders and depth: what must hold, and for whom."""

from __future__ import annotations

from typing import Any

import pytest

from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks import carry_out, registry
from studies.paper.worlds import cosine, evidence, layers

OPTIONS: dict[str, dict[str, Any]] = {
    "every_site": {"at_least": 0.1},
    "against_isotropic": {},
    "last_state": {"models": ["m"], "at_least": 0.1},
    "decoder_extreme": {"models": ["m"]},
    "higher_peaks": {"higher": ["a"], "lower": ["b"]},
    "narrows": {},
    "drift_correlation": {"correlated": True},
    "tests_disagree": {"models": ["m"]},
    "falls_with_depth": {"models": ["m"]},
    "first_layers_sharper": {},
    "along_training": {"metric": "entropy"},
    "along_drift": {"label": "bert", "metric": "mean_norm"},
    "output_above_input": {"label": "bert"},
    "crosses": {"label": "bert"},
    "norms_near_fixed_point": {"label": "bert", "models": ["m"]},
    "anisotropic_at_start": {"label": "bert", "site": ["query"]},
    "clearer_over_sequences": {"label": "bert"},
    "both_directions": {},
    "almost_all_align": {},
    "layers_direction": {"part": "first"},
    "opposite_starts_late": {},
    "plane_agrees": {"plane": "keys"},
    "drift_on_first_direction": {},
    "seeds_agree": {},
    "vocabulary_level": {"models": ["m"], "at_least": 0.1},
    "as_published": {"models": ["m"], "metric": "x", "published": {"input": 1.0}},
    "small_bias": {"isotropic": ["a"], "anisotropic": ["b"]},
    "sharp_drop": {"models": ["m"]},
}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_nothing_seen_is_not_a_no(name: str) -> None:
    assert carry_out(name, evidence([Row(metric="other", value=1.0, model="m")]), OPTIONS[name]).holds is None


def test_all_checks_are_tried_above() -> None:
    assert set(OPTIONS) == set(registry())


def test_at_least_is_the_estimate_not_the_end_of_its_interval() -> None:
    options = {"at_least": 0.2, "group": "speech"}
    for value, holds in ((0.205, True), (0.2, True), (0.199, False)):
        found = evidence([cosine("block.0", value, width=0.02)], group="speech")
        assert carry_out("every_site", found, options).holds is holds


def test_raw_states_and_norms_are_told_apart() -> None:
    found = evidence([cosine("block.0", 0.5), cosine("block.1", 0.4), cosine("final_norm", 0.15)])
    assert carry_out("every_site", found, {"at_least": 0.2}).holds is True
    seen = carry_out("every_site", found, {"at_least": 0.2, "sites": "norms"})
    assert seen.holds is False
    assert "0.150 (0.140 … 0.160) at final_norm" in seen.words


def test_the_library_lists_the_normed_state_in_place_of_the_last_raw_one() -> None:
    rows = [cosine("embeddings", 0.5), cosine("block.0", 0.5), cosine("block.1", 0.1), cosine("final_norm", 0.6)]
    ours, library = evidence(rows), evidence(rows, convention="library")
    assert [row.site for row in library.layers("m")] == ["embeddings", "block.0", "final_norm"]
    assert [row.site for row in ours.layers("m")] == ["embeddings", "block.0", "block.1"]
    assert [carry_out("every_site", one, {"at_least": 0.2}).holds for one in (ours, library)] == [False, True]


def test_some_layer_of_every_model() -> None:
    rows = layers("a", [0.0, 0.5]) + layers("b", [0.0, 0.01])
    assert carry_out("against_isotropic", evidence(rows), {"some": True}).holds is False
    assert carry_out("against_isotropic", evidence(rows), {"some": True, "but": ["b"]}).holds is True
    assert carry_out("against_isotropic", evidence(rows), {}).holds is False
    assert carry_out("against_isotropic", evidence(rows), {"models": ["b"], "below": True}).holds is True


def test_the_bound_is_that_of_the_dimension() -> None:
    low, high = evidence(layers("a", [0.2], d=16)), evidence(layers("a", [0.2], d=768))
    assert [carry_out("against_isotropic", one, {}).holds for one in (low, high)] == [False, True]


def test_groups_are_those_of_the_runs() -> None:
    found = evidence(layers("a", [0.9]), group="speech")
    assert carry_out("every_site", found, {"at_least": 0.2, "group": "speech"}).holds is True
    assert carry_out("every_site", found, {"at_least": 0.2, "group": "vision"}).holds is None


def test_a_decoder_must_be_extreme_and_above_its_encoder() -> None:
    def stacks(encoder: float, decoder: float) -> Any:
        return evidence([cosine("encoder.block.0", encoder), cosine("decoder.block.0", decoder)])

    found = [carry_out("decoder_extreme", stacks(*pair), {"models": ["m"]}).holds for pair in ((0.3, 0.9), (0.95, 0.9))]
    assert found == [True, False]


def test_the_normed_state_of_a_decoder_counts_and_the_raw_one_is_told() -> None:
    rows = [cosine("encoder.block.0", 0.1), cosine("decoder.block.0", 0.7), cosine("decoder.final_norm", 0.95)]
    seen = carry_out("decoder_extreme", evidence(rows), {"models": ["m"]})
    assert seen.holds is True
    assert seen.words.endswith("highest raw state 0.700 (0.690 … 0.710) at decoder.block.0")


def test_a_model_stands_for_another_only_where_that_is_missing_and_may() -> None:
    rows = [cosine("encoder.block.0", 0.1, model="x/small"), cosine("decoder.block.0", 0.9, model="x/small")]
    found = evidence(rows, stands_for={"small": ("t5-base",)})
    assert carry_out("decoder_extreme", found, {"models": ["t5-base"], "extends": True}).holds is True
    assert carry_out("decoder_extreme", found, {"models": ["t5-base"]}).holds is None


def test_peaks_decide_an_order() -> None:
    rows = layers("a", [0.1, 0.9]) + layers("b", [0.5, 0.6])
    options = {"higher": ["a"], "lower": ["b"]}
    seen = carry_out("higher_peaks", evidence(rows), options)
    assert seen.holds is True
    assert seen.chance is not None
    assert 0.45 < seen.chance < 0.55


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([0.9, 0.8, 0.6, 0.5, 0.3, 0.2], True),
        ([0.2, 0.3, 0.5, 0.6, 0.8, 0.9], False),
        ([0.6, 0.5, 0.4, 0.9, 0.3, 0.2], False),  # the highest layer lies in the second half
        ([0.9, 0.2, 0.8, 0.3, 0.7, 0.4], False),  # the ends fall, the layers between do not
    ],
)
def test_more_and_more_isotropic_means_from_layer_to_layer(values: list[float], holds: bool) -> None:
    assert carry_out("falls_with_depth", evidence(layers("m", values)), {"models": ["m"]}).holds is holds


def test_the_bluntest_layer_must_not_be_among_the_first() -> None:
    def entropies(*values: float) -> Any:
        rows = [Row(metric="entropy", site=f"block.{i}", layer=i, step=9, value=x) for i, x in enumerate(values)]
        return evidence(rows)

    assert carry_out("first_layers_sharper", entropies(1.0, 2.0, 3.0, 4.0), {}).holds is True
    assert carry_out("first_layers_sharper", entropies(1.0, 9.0, 3.0, 8.0), {}).holds is False


def test_isotropic_pairs_narrow() -> None:
    rows = [Row(metric="cosine_q95", site=f"d = {d}", value=v) for d, v in ((16, 0.4), (64, 0.2))]
    assert carry_out("narrows", evidence(rows), {}).holds is True
    assert carry_out("narrows", evidence(rows[::-1]), {}).holds is False
