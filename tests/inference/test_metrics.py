"""Every metric is declared once, with a meaning, a range that holds and a null that is the one beside the estimates."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from anisoscope.accumulate.moments import Moments
from anisoscope.errors import UsageError
from anisoscope.geometry.nulls.isotropic import cosine_quantile, direction_null, neighbour_null, spectral_null
from anisoscope.inference.cloud import measure_cloud
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.inference.metrics import GROUPS, METRICS, Metric, declared, lookup, near, of_cloud


@pytest.fixture(scope="module")
def moments() -> Moments:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1200, 24)) * np.linspace(0.3, 2, 24) + 0.4
    found = Moments(24)
    keys = np.repeat(np.arange(60), 20).astype(np.uint64)
    found.update(torch.from_numpy(x), sequences=keys, first=np.arange(1200) % 20 == 0)
    return found


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_declaration_reads_like_one(metric: Metric) -> None:
    assert METRICS[metric.name] is metric
    assert metric.meaning.endswith(".")
    assert metric.meaning[0].isupper() or metric.meaning.startswith("p-value")
    assert metric.meaning.count(". ") == 0
    assert metric.label
    assert metric.group in GROUPS
    assert metric.low is None or metric.high is None or metric.low < metric.high
    assert (metric.of is None) == (metric.reads == ())
    assert not metric.paired or metric.of is not None


def test_estimates_of_a_cloud_are_declared_and_lie_in_their_range(moments: Moments) -> None:
    for estimates in measure_cloud(moments).estimates.values():
        for e in estimates:
            metric = lookup(e.metric)
            assert e.value is None or metric.low is None or e.value >= metric.low - 1e-12, e
            assert e.value is None or metric.high is None or e.value <= metric.high + 1e-12, e


def test_the_null_beside_an_estimate_is_that_of_its_n_and_d(moments: Moments) -> None:
    found = {e.metric: e for e in measure_cloud(moments).estimates["all"]}
    expected = {
        "resultant": direction_null("resultant", 1200, 24),
        "isoscore": spectral_null("isoscore", 1200, 24),
        "rankme": spectral_null("rankme", 1200, 24),
        "hubness": neighbour_null("hubness", 1200, 24),
    }
    for name, known in expected.items():
        assert known is not None
        assert found[name].null == known.value, name
    assert found["cosine_q99"].null == cosine_quantile(0.99, 24)  # of one pair, not of an average
    assert found["mean_cosine"].null == 0.0
    assert found["mean_norm"].null is None


@pytest.mark.parametrize("metric", of_cloud("direction"), ids=lambda metric: metric.name)
def test_one_function_gives_the_value_and_the_jackknife(metric: Metric, moments: Moments) -> None:
    sums = moments.sums()
    assert metric.of is not None
    found = next(e for e in measure_cloud(moments).estimates["all"] if e.metric == metric.name)
    assert (found.value, found.low, found.high) == jackknife_of(metric.of, *metric.groups(sums), sizes=sums.group_n)


def test_families_take_after_what_they_are_made_of() -> None:
    change = lookup("entropy_normalised_change")
    assert (change.low, change.high, change.group, change.isotropic(10, 10)) == (-1.0, 1.0, "attention", 0.0)
    assert "untouched model" in change.meaning
    assert "control" in lookup("validation_loss_difference").meaning
    before = lookup("mean_cosine_before")
    assert (before.low, before.high, before.label) == (-1.0, 1.0, "average cosine, before")
    assert lookup("cosine_q99.9").isotropic(2, 64) == pytest.approx(cosine_quantile(0.999, 64))
    assert "unrelated" in lookup("floor_q75").meaning
    assert (declared("cosine_q0"), declared("cosine_q100"), declared("nothing_change")) == (None, None, None)


def test_an_unknown_metric_is_refused_with_what_was_meant() -> None:
    assert near("mean_cosin")[0] == "mean_cosine"
    assert near("entropy_normalized")[0] == "entropy_normalised"
    with pytest.raises(UsageError, match="perhaps mean_cosine"):
        lookup("mean_cosin")


def test_described_is_plain_data() -> None:
    assert lookup("drift_ratio").described() == {
        "group": "direction",
        "label": "drift ratio",
        "meaning": lookup("drift_ratio").meaning,
        "unit": "",
        "low": 0.0,
        "high": 1.0,
    }


def test_declarations_need_no_torch() -> None:
    code = "import sys, anisoscope.inference.metrics, anisoscope.inference.verdict; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
