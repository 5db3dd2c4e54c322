"""The drift tests over layers against scipy, and what counts as a layer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anisoscope.runs.table import Row
from anisoscope.studies.measure.drift import drift_rows

SITES = ("embeddings", *(f"block.{k}" for k in range(6)))
COSINE = np.array([0.05, 0.11, 0.18, 0.17, 0.33, 0.41, 0.58])
NORM = np.array([1.2, 1.9, 3.1, 2.8, 5.5, 9.7, 9.1])
RATIO = np.array([0.06, 0.09, 0.21, 0.16, 0.30, 0.44, 0.57])


def rows_of(sites=SITES, *, model="m", cosine=COSINE, norm=NORM, ratio=RATIO, positions="all") -> list[Row]:
    values = {"mean_cosine": cosine, "drift_norm": norm, "drift_ratio": ratio}
    return [
        Row(model=model, site=site, metric=metric, value=None if v is None else float(v), positions=positions)
        for metric, column in values.items()
        for site, v in zip(sites, column, strict=True)
    ]


def values(rows: list[Row], model: str = "m") -> dict[str, float | None]:
    return {row.metric: row.value for row in rows if row.model == model}


@pytest.mark.parametrize(("against", "other"), [("drift_norm", NORM), ("drift_ratio", RATIO)])
@pytest.mark.parametrize("method", ["spearman", "pearson"])
def test_correlation_and_asymptotic_p_are_those_of_scipy(method, against, other):
    found = values(drift_rows(rows_of()))
    theirs = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[method](COSINE, other)
    assert found[f"{method}_{against}"] == pytest.approx(theirs.statistic, abs=1e-12)
    assert found[f"{method}_{against}_p_asymptotic"] == pytest.approx(theirs.pvalue, rel=1e-9)


@pytest.mark.parametrize("method", ["spearman", "pearson"])
def test_p_of_few_layers_is_the_exact_permutation_test_of_scipy(method):
    score = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[method]
    theirs = stats.permutation_test(
        (COSINE[:6],),
        lambda x: abs(score(x, NORM[:6]).statistic),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=np.inf,
    )
    found = drift_rows(rows_of(SITES[:6], cosine=COSINE[:6], norm=NORM[:6], ratio=RATIO[:6]))
    row = next(row for row in found if row.metric == f"{method}_drift_norm_p")
    assert row.value == pytest.approx(theirs.pvalue, abs=1e-12)
    assert row.protocol == "exact over 720 orders"


def test_p_of_many_layers_is_close_to_the_permutation_test_of_scipy():
    rng = np.random.default_rng(0)
    cosine = rng.random(25)
    norm = cosine + 0.8 * rng.random(25)
    sites = tuple(f"block.{k}" for k in range(25))
    row = next(
        row
        for row in drift_rows(rows_of(sites, cosine=cosine, norm=norm, ratio=norm))
        if row.metric == "pearson_drift_norm_p"
    )
    theirs = stats.pearsonr(cosine, norm, method=stats.PermutationMethod(n_resamples=20_000, random_state=1))
    assert row.value == pytest.approx(theirs.pvalue, abs=5e-3)
    assert "20000 random orders" in row.protocol


def test_what_a_norm_makes_of_a_block_is_no_layer():
    with_norm = rows_of((*SITES, "final_norm"), cosine=[*COSINE, 0.0], norm=[*NORM, 99.0], ratio=[*RATIO, 0.0])
    assert drift_rows(with_norm) == drift_rows(rows_of())
    assert {row.n for row in drift_rows(with_norm)} == {len(SITES)}


def test_first_positions_and_the_rest_do_not_count_twice():
    extra = rows_of(positions="rest", cosine=COSINE[::-1]) + rows_of(positions="first", cosine=COSINE[::-1])
    assert drift_rows(rows_of() + extra) == drift_rows(rows_of())


def test_each_model_is_tested_by_itself():
    found = drift_rows(rows_of(model="a") + rows_of(model="b", cosine=COSINE[::-1]))
    assert values(found, "a")["spearman_drift_norm"] > 0.9
    assert values(found, "b")["spearman_drift_norm"] < -0.8


def test_a_layer_without_a_number_is_left_out():
    holed = rows_of(cosine=[*COSINE[:-1], None])
    shorter = rows_of(SITES[:-1], cosine=COSINE[:-1], norm=NORM[:-1], ratio=RATIO[:-1])
    assert values(drift_rows(holed)) == values(drift_rows(shorter))


@pytest.mark.parametrize("layers", [1, 2])
def test_two_layers_say_nothing(layers):
    found = drift_rows(rows_of(SITES[:layers], cosine=COSINE[:layers], norm=NORM[:layers], ratio=RATIO[:layers]))
    assert {row.value for row in found} == {None}
    assert all("undefined" in row.protocol for row in found if not row.metric.endswith("asymptotic"))


def test_layers_that_are_all_alike_say_nothing():
    assert set(values(drift_rows(rows_of(cosine=np.full(7, 0.5)))).values()) == {None}
