"""The untrained block: the paper's five statements over ten draws, the fixed point, equation 1, the rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import BertConfig

from anisoscope.runs.table import Row
from anisoscope.studies.block.experiment import Draw, Experiment, cloud_numbers, draw, run_experiment

D = 64
NORMS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


def small_bert() -> BertConfig:
    """One BERT layer, narrow: std 0.02·√(768/64), so that projections stretch vectors as they do at base size."""
    return BertConfig(
        hidden_size=D,
        num_attention_heads=4,
        intermediate_size=4 * D,
        vocab_size=1000,
        num_hidden_layers=12,
        max_position_embeddings=128,
        initializer_range=0.07,
    )


SMALL = Experiment(small_bert(), "bert", norms=NORMS, seeds=10, sequences=2, length=96)


@pytest.fixture(scope="module")
def result() -> list[Row]:
    return run_experiment(SMALL)[0]


def curves(result: list[Row], site: str, metric: str) -> np.ndarray:
    """Values (draws, N)."""
    rows = [row for row in result if row.site == site and row.metric == metric and row.seed is not None]
    values = {(row.seed, row.at): row.value for row in rows}
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    return np.array([[values[seed, norm] for norm in NORMS] for seed in seeds], dtype=float)


def test_the_output_cosine_is_above_the_input_cosine_at_every_norm(result: list[Row]) -> None:
    above = curves(result, "output", "mean_cosine") - curves(result, "input", "mean_cosine")
    assert above.shape == (10, len(NORMS))
    assert (above.mean(0) > 0).all()
    assert (above[:, 0] > 0).all()
    assert (above > 0).mean() > 0.6  # a single narrow draw may fall below it, by the luck of its direction


def test_the_norms_cross_in_every_draw_where_layernorm_says(result: list[Row]) -> None:
    found = [row for row in result if row.metric == "fixed_point"]
    expected = next(row for row in result if row.metric == "fixed_point_of_layernorm")
    assert len(found) == 11
    for row in found:
        assert row.value == pytest.approx(expected.value, abs=0.06)
    average = next(row for row in found if row.seed is None)
    assert average.low is not None
    assert average.high is not None
    assert average.low <= average.value <= average.high


def test_the_output_norm_is_sqrt_d_at_every_norm(result: list[Row]) -> None:
    np.testing.assert_allclose(curves(result, "output", "mean_norm"), np.sqrt(D), rtol=1e-4)


def test_scores_leave_zero_and_the_draw_decides_the_sign(result: list[Row]) -> None:
    scores = curves(result, "scores", "mean_score")
    assert (np.abs(scores[:, -1]) > 10 * np.abs(scores[:, 0])).all()
    assert {-1.0, 1.0} == set(np.sign(scores[:, -1]))


def test_queries_and_keys_grow_with_the_drift(result: list[Row]) -> None:
    for site in ("query", "key"):
        norms = curves(result, site, "mean_norm")
        assert (np.diff(norms[:, 2:], axis=1) > 0).all()
        assert (norms[:, -1] > 5 * norms[:, 0]).all()


def test_attention_sharpens_with_the_drift(result: list[Row]) -> None:
    assert (np.diff(curves(result, "softmax", "max_probability"), axis=1) > 0).all()
    assert (np.diff(curves(result, "softmax", "min_probability"), axis=1) < 0).all()
    spread = curves(result, "softmax", "sequence_max_probability") - curves(result, "softmax", "max_probability")
    assert (spread > 0).all()


def test_equation_1_holds_within_sampling_error(result: list[Row]) -> None:
    """‖mean − expected‖ over its standard error is √(χ²_k/k) with k about the rank of the projection."""
    for site in ("query", "key"):
        distance = curves(result, site, "equation_1_distance")
        assert (np.abs(distance - 1) < 5 / np.sqrt(D / 2)).all()
        assert abs(distance[:, 0].mean() - 1) < 5 / np.sqrt(10 * D / 2)


def test_equation_1_expects_w_times_mean_plus_bias() -> None:
    settings = dataclasses.replace(SMALL, seeds=1, qk_bias=True)
    _, arrays = run_experiment(settings)
    drawn = draw(settings, 0)
    layer = drawn.stack.blocks[0].attention.self
    for site in ("query", "key"):
        projection = getattr(layer, site)
        table = drawn.stack.module.get_input_embeddings().weight
        mean = table.mean(0) + NORMS[-1] * drawn.direction
        expected = projection.weight @ mean + projection.bias
        stored = arrays[f"{settings.label}/{site}_mean_expected"][0, -1]
        np.testing.assert_allclose(stored, expected.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("metric", "kind"), [("fixed_point", "mean_norm"), ("fixed_point_of_mean", "norm_of_mean")])
def test_the_fixed_point_equals_brute_force(metric: str, kind: str) -> None:
    settings = dataclasses.replace(SMALL, seeds=2, input="embeddings" if kind == "norm_of_mean" else "table")
    found = {row.seed: row.value for row in run_experiment(settings)[0] if row.metric == metric}
    for seed in range(2):
        drawn = draw(settings, seed)

        def gap(norm: float, drawn: Draw = drawn) -> float:
            return drawn.output_norm(norm, kind) - cloud_numbers(drawn.at(norm))[kind]

        grid = np.linspace(0, NORMS[-1], 41)
        signs = np.sign([gap(norm) for norm in grid])
        left, right = next((a, b) for a, b, s, t in zip(grid, grid[1:], signs, signs[1:], strict=False) if s != t)
        for _ in range(12):
            middle = (left + right) / 2
            left, right = (middle, right) if np.sign(gap(middle)) == np.sign(gap(left)) else (left, middle)
        assert found[seed] == pytest.approx((left + right) / 2, abs=2e-3)


def test_no_crossing_is_an_answer() -> None:
    settings = dataclasses.replace(SMALL, seeds=2, norms=(0.0, 1.0, 2.0))
    rows = [row for row in run_experiment(settings)[0] if row.metric == "fixed_point"]
    assert [row.value for row in rows] == [None] * 3
    assert all("no crossing in [0, 2]" in row.note for row in rows)


def test_average_rows_are_the_mean_of_the_draws_with_a_student_interval(result: list[Row]) -> None:
    from scipy.stats import ttest_1samp

    values = curves(result, "output", "mean_cosine")[:, 2]
    row = next(
        row
        for row in result
        if row.site == "output" and row.metric == "mean_cosine" and row.at == NORMS[2] and row.seed is None
    )
    interval = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert row.value == pytest.approx(values.mean())
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    assert row.n == 10 * 2 * 96


def test_cloud_numbers_equal_brute_force() -> None:
    x = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(3)) + 0.5
    flat = x.reshape(-1, 5).double().numpy()
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(18, dtype=bool)]
    numbers = cloud_numbers(x)
    assert numbers["mean_cosine"] == pytest.approx(pairs.mean(), abs=1e-12)
    assert numbers["mean_norm"] == pytest.approx(np.linalg.norm(flat, axis=1).mean())
    assert numbers["norm_of_mean"] == pytest.approx(np.linalg.norm(flat.mean(0)))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    settings = dataclasses.replace(SMALL, seeds=2, norms=(0.0, 5.0))
    first, second = run_experiment(settings)[0], run_experiment(settings)[0]
    assert [row.value for row in first] == [row.value for row in second]
    by_seed = {row.seed: row.value for row in first if row.metric == "mean_score" and row.at == 5.0}
    assert by_seed[0] != by_seed[1]


def test_vectors_come_from_the_table() -> None:
    drawn = draw(dataclasses.replace(SMALL, seeds=1), 0)
    table = drawn.stack.module.get_input_embeddings().weight
    assert (drawn.vectors[0][:, None] == table).all(-1).any(1).all()
    assert drawn.direction.norm().item() == pytest.approx(1.0, abs=1e-6)


def test_embeddings_share_a_component_and_the_table_does_not() -> None:
    norms = (0.0, 5.0)
    table = run_experiment(dataclasses.replace(SMALL, seeds=2, norms=norms))[0]
    whole = run_experiment(dataclasses.replace(SMALL, seeds=2, norms=norms, input="embeddings"))[0]

    def query_cosine(result: list[Row]) -> float:
        found = [
            row.value
            for row in result
            if row.site == "query" and row.metric == "mean_cosine" and row.at == 0.0 and row.seed is None
        ]
        assert found[0] is not None
        return found[0]

    assert abs(query_cosine(table)) < 0.02
    assert query_cosine(whole) > 0.2


def test_query_and_key_biases_make_them_anisotropic_without_drift() -> None:
    biased = run_experiment(dataclasses.replace(SMALL, seeds=2, norms=(0.0, 5.0), qk_bias=True))[0]
    rows = [r for r in biased if r.metric == "mean_cosine" and r.at == 0.0 and r.site in ("query", "key")]
    assert rows
    assert all(row.value is not None and row.value > 0.1 for row in rows)
    assert all(row.model.endswith("q/k bias") for row in rows)
