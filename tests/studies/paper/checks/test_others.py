"""The untrained block, correlations with drift, and the rebuttal: what must not pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anisoscope.runs.table import Row
from anisoscope.studies.paper.checks import carry_out
from anisoscope.studies.paper.recipes import choose
from studies.paper.worlds import cosine, evidence, layers

BERT = {"label": "bert"}


# -- the block ---------------------------------------------------------------------------------------------------------


def fixed(value: float | None, *, note: str = "", of_layernorm: float = 27.7) -> Any:
    rows = [Row(model="bert", metric="fixed_point", site="output", value=value, note=note)]
    rows += [Row(model="bert", metric="fixed_point_of_layernorm", site="input", value=of_layernorm)]
    return evidence(rows)


def test_norms_that_meet_without_drift_do_not_cross() -> None:
    assert carry_out("crosses", fixed(0.0), BERT).holds is False
    assert carry_out("crosses", fixed(None, note="no crossing in [0, 60]"), BERT).holds is False
    seen = carry_out("crosses", fixed(27.7), BERT)
    assert seen.holds is True
    assert "LayerNorm" in seen.words  # and the reader learns that it could not have failed
    assert seen.chance is None
    assert "must meet" in seen.about_chance
    assert "LayerNorm" not in carry_out("crosses", fixed(11.0), BERT).words


def test_norms_of_a_trained_model_are_compared_in_its_own_width() -> None:
    rows = [Row(model="bert", metric="fixed_point", site="output", value=27.7)]
    rows += [Row(model="bert", metric="width", site="input", value=768.0)]
    rows += [Row(model="x/mini", metric="dimension", site="block.0", value=192.0)]
    options = {**BERT, "models": ["mini"]}
    for norm, holds in ((14.0, True), (60.0, False), (2.0, False)):  # √192 is 13.9
        found = evidence([*rows, Row(model="x/mini", metric="mean_norm", site="block.0", value=norm)])
        assert carry_out("norms_near_fixed_point", found, options).holds is holds


def test_anisotropic_without_drift_under_the_input_that_is_asked_about() -> None:
    def start(label: str, value: float) -> list[Row]:
        rows = [cosine(site, value, model=label, at=0.0) for site in ("query", "key")]
        return [*rows, Row(model=label, metric="width", site="input", value=768.0)]

    found = evidence(start("bert", 0.001) + start("bert, embeddings", 0.5))
    options = {"site": ["query", "key"]}
    assert carry_out("anisotropic_at_start", found, {**options, "label": "bert"}).holds is False
    assert carry_out("anisotropic_at_start", found, {**options, "label": "bert, embeddings"}).holds is True


def test_slightly_above_at_every_drift_with_its_interval() -> None:
    def gaps(values: list[list[float]]) -> Any:
        rows = []
        for seed, line in enumerate(values):
            for at, gap in enumerate(line):
                rows += [cosine("input", 0.1, model="bert", at=float(at), seed=seed)]
                rows += [cosine("output", 0.1 + gap, model="bert", at=float(at), seed=seed)]
        return evidence(rows)

    assert carry_out("output_above_input", gaps([[0.01, 0.02]] * 3), BERT).holds is True
    assert carry_out("output_above_input", gaps([[0.01, -0.02]] * 3), BERT).holds is False
    assert carry_out("output_above_input", gaps([[0.5, 0.6]] * 3), BERT).holds is False  # not slightly
    noisy = gaps([[0.05, 0.05], [-0.04, 0.05], [0.01, 0.05]])
    assert carry_out("output_above_input", noisy, BERT).holds is False  # on average above, within the noise of draws


@pytest.mark.parametrize(("sequence", "holds"), [((1.4, 0.6), True), ((1.4, 0.8), False), ((1.1, 0.6), False)])
def test_both_extremes_must_be_clearer_over_sequences(sequence: tuple[float, float], holds: bool) -> None:
    ends = {"max": 1.2, "min": 0.7, "sequence_max": sequence[0], "sequence_min": sequence[1]}
    rows = [
        Row(model="bert", site="softmax", metric=f"{name}_probability", at=at, seed=seed, value=end if at else 1.0)
        for name, end in ends.items()
        for at in (0.0, 60.0)
        for seed in range(4)
    ]
    assert carry_out("clearer_over_sequences", evidence(rows), BERT).holds is holds


# -- correlations ------------------------------------------------------------------------------------------------------


def test_a_negative_correlation_is_no_support_for_drift() -> None:
    depth = np.arange(12) / 12
    up, down = evidence(layers("m", depth, drift=depth)), evidence(layers("m", depth, drift=1 - depth))
    assert [carry_out("drift_correlation", one, {"correlated": True}).holds for one in (up, down)] == [True, False]


def test_a_negative_correlation_is_a_correlation() -> None:
    depth = np.arange(12) / 12
    found = evidence(layers("m", depth, drift=1 - depth))
    assert carry_out("drift_correlation", found, {"correlated": False}).holds is False
    scattered = np.random.default_rng(0).permutation(depth)
    found = evidence(layers("m", depth, drift=scattered))
    assert carry_out("drift_correlation", found, {"correlated": False}).holds is True


def test_four_layers_cannot_be_significant_and_are_left_out() -> None:
    four = layers("m", [0.1, 0.2, 0.3, 0.4], drift=[1, 2, 3, 4])
    for correlated in (True, False):
        seen = carry_out("drift_correlation", evidence(four), {"correlated": correlated})
        assert seen.holds is None
        assert "p cannot fall below 0.083" in seen.words
    asymptotic = evidence(four, p_values="asymptotic")
    assert carry_out("drift_correlation", asymptotic, {"correlated": True}).holds is True  # as the paper would have it


def test_most_is_not_all() -> None:
    depth = np.arange(10) / 10
    mixed = np.random.default_rng(3).permutation(depth)
    rows = layers("a", depth, drift=depth) + layers("b", depth, drift=depth) + layers("c", depth, drift=mixed)
    options = {"correlated": True}
    assert carry_out("drift_correlation", evidence(rows), {**options, "need": "most"}).holds is True
    assert carry_out("drift_correlation", evidence(rows), {**options, "need": "all"}).holds is False
    assert carry_out("drift_correlation", evidence(rows), {**options, "models": ["c"]}).holds is False


def test_spearman_and_pearson_on_either_side_of_the_line() -> None:
    values = np.arange(10.0)
    apart = evidence(layers("m", values / 10, drift=np.r_[-values[:9], 1000.0]))  # one layer makes the line
    same = evidence(layers("m", values / 10, drift=values))
    assert carry_out("tests_disagree", same, {"models": ["m"]}).holds is False
    assert "Pearson" in carry_out("tests_disagree", apart, {"models": ["m"]}).words


# -- the rebuttal ------------------------------------------------------------------------------------------------------


def biases(cosines: dict[str, float], sizes: dict[str, float]) -> Any:
    rows = [cosine("final_norm", value, model=name) for name, value in cosines.items()]
    metrics = ("bias_norm", "bias_over_gain")
    rows += [
        Row(model=n, site="final_norm", metric=metric, value=size) for n, size in sizes.items() for metric in metrics
    ]
    return evidence(rows)


def test_a_small_bias_is_a_test_only_of_models_that_are_isotropic() -> None:
    options = {"isotropic": ["large"], "anisotropic": ["small"]}
    as_said = biases({"large": 0.1, "small": 0.9}, {"large": 0.1, "small": 2.0})
    assert carry_out("small_bias", as_said, options).holds is True
    other = biases({"large": 0.1, "small": 0.9}, {"large": 3.0, "small": 2.0})
    assert carry_out("small_bias", other, options).holds is False
    stand_in = biases({"large": 0.7, "small": 0.9}, {"large": 0.1, "small": 2.0})
    seen = carry_out("small_bias", stand_in, options)
    assert seen.holds is None
    assert "large 0.70" in seen.words


@pytest.mark.parametrize(("stack", "after", "holds"), [(0.8, 0.15, True), (0.8, 0.6, False), (0.2, 0.05, False)])
def test_high_through_the_stack_then_a_sharp_drop(stack: float, after: float, holds: bool) -> None:
    rows = [cosine(f"block.{i}", stack, metric="mean_cosine_inter") for i in range(4)]
    rows += [cosine("final_norm", after, metric="mean_cosine_inter")]
    assert carry_out("sharp_drop", evidence(rows), {"models": ["m"]}).holds is holds


def test_the_last_step_counts() -> None:
    rows = [
        Row(model="m", site="vocabulary.output", metric="partition_one_sided", step=step, value=value)
        for step, value in ((0, 0.99), (9, 0.4))
    ]
    assert carry_out("vocabulary_level", evidence(rows), {"models": ["m"], "at_least": 0.73}).holds is False
    assert carry_out("vocabulary_level", evidence(rows), {"models": ["m"], "below": 0.52}).holds is True


def test_published_numbers_are_met_to_half_a_percent() -> None:
    options = {"models": ["m"], "metric": "i", "published": {"input": 0.9584, "output": 0.0831}}
    for value, holds in ((0.0829, True), (0.093, False)):
        rows = [Row(model="m", site="vocabulary.input", metric="i", value=0.9585)]
        rows += [Row(model="m", site="vocabulary.output", metric="i", value=value)]
        assert carry_out("as_published", evidence(rows), options).holds is holds


def test_the_vector_of_a_whole_text_and_what_a_part_adds_are_no_layers() -> None:
    found = evidence(layers("m", [0.1, 0.2]) + [cosine(site, 0.9, model="m") for site in ("embedding", "block.0.mlp")])
    assert [row.site for row in found.layers("m")] == ["block.0", "block.1"]


def test_the_checkpoints_of_a_series_are_one_model() -> None:
    common: dict[str, Any] = {"site": "vocabulary.output", "metric": "partition_one_sided"}
    steps = ((0, 0.9), (512, 0.1))
    rows = [Row(model=f"EleutherAI/pythia-70m@step{s}", step=s, value=value, **common) for s, value in steps]
    seen = carry_out("vocabulary_level", evidence(rows), {"models": ["pythia-70m"], "below": 0.52})
    assert seen.holds is True  # by its last step


@pytest.mark.parametrize(("small", "large", "hold"), [(0.9, 0.01, [True, True]), (0.4, 0.2, [False, False])])
def test_the_clouds_of_a_vocabulary_away_from_the_origin_and_around_it(small: float, large: float, hold: list) -> None:
    common: dict[str, Any] = {"site": "vocabulary.output", "metric": "drift_ratio"}
    rows = [Row(model="EleutherAI/pythia-70m", value=small, **common)]
    rows += [Row(model="EleutherAI/pythia-6.9b", value=large, **common)]
    (figure,) = choose(["M4"])
    seen = [carry_out(said.check, evidence(rows), said.options).holds for said in figure.statements]
    assert seen == hold
    nothing = [carry_out(said.check, evidence([]), said.options).holds for said in figure.statements]
    assert nothing == [None, None]
