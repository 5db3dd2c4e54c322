"""The sketch of a spectrum against the exact one, by numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.accumulate import moments as module
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sketch import projection, read_sketch
from anisoscope.accumulate.sums import sketched, variances
from anisoscope.geometry.spectrum import OF_EIGENVALUES
from anisoscope.inference.cloud import measure_cloud

SHAPES = {"flat": 0.0, "gentle": 0.5, "critical": 1.0, "steep": 2.0}


def cloud(n: int, d: int, decay: float, drift: float = 3.0) -> np.ndarray:
    """Rows whose covariance falls as j^(−decay), turned by reflections, with a common vector."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** (-decay / 2)
    for _ in range(3):
        mirror = rng.standard_normal(d)
        mirror /= np.linalg.norm(mirror)
        x -= 2 * np.outer(x @ mirror, mirror)
    return x + drift * rng.standard_normal(d)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketch from d = 1,024 on, so that the exact spectrum is cheap."""
    monkeypatch.setattr(module, "LARGEST_SPECTRUM", 1023)


def summed(x: np.ndarray) -> Moments:
    found = Moments(x.shape[1], reservoir=256)
    found.update(torch.from_numpy(x))
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", SHAPES)
def test_eigenvalues_lie_within_the_stated_bound(shape: str) -> None:
    x = cloud(3000, 1024, SHAPES[shape])
    exact = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    found = sketched(summed(x).sums(), centred=True)
    rounding = 1e-6 * exact[0]
    assert found.trace == pytest.approx(exact.sum(), rel=1e-9)
    assert (found.values <= exact[: len(found.values)] + rounding).all()
    assert (exact[: len(found.values)] <= found.values + found.error + rounding).all()
    assert found.square == pytest.approx(np.square(exact).sum(), rel=0.05)
    top = exact[:10]
    if shape in ("critical", "steep"):
        np.testing.assert_allclose(found.values[:10], top, rtol=0.02)
        assert found.error < 0.2 * exact[0]


def test_at_4096_the_metrics_are_those_of_the_exact_spectrum() -> None:
    d = 4096
    values = np.arange(1, d + 1) ** -1.0
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((d, 64)))[0]

    def times(matrix: np.ndarray) -> np.ndarray:  # A·matrix for A = R·diag(values)·R, R = I − 2·turn·turnᵀ
        def reflect(m: np.ndarray) -> np.ndarray:
            return m - 2 * turn @ (turn.T @ m)

        return reflect(values[:, None] * reflect(matrix))

    omega = projection(d, 0)
    found = read_sketch(times(omega), omega, values.sum())
    assert (found.values <= values[: len(found.values)] + 1e-6).all()
    assert (values[: len(found.values)] <= found.values + found.error + 1e-6).all()
    np.testing.assert_allclose(found.values[:3], values[:3], rtol=0.03)
    spectrum = found.spectrum()
    assert spectrum.sum() == pytest.approx(values.sum(), rel=1e-9)
    tolerances = {"participation_ratio": 0.01, "pc1_share": 0.01, "stable_rank": 0.01}
    for name, within in tolerances.items():
        assert OF_EIGENVALUES[name](spectrum, 10**6) == pytest.approx(OF_EIGENVALUES[name](values, 10**6), rel=within)


@pytest.mark.usefixtures("small")
def test_sketches_merge_in_any_order_and_survive_storage() -> None:
    x = cloud(900, 1024, 1.0)
    whole = summed(x)
    parts = []
    for start in (600, 0, 300):
        part = Moments(1024, reservoir=256)
        part.update(torch.from_numpy(x[start : start + 300]), start=start)
        parts.append(Moments.from_state(part.state()))
    for part in parts[1:]:
        parts[0].merge(part)
    a, b = whole.sums(), parts[0].sums()
    assert a.sketch is not None
    assert b.sketch is not None
    np.testing.assert_allclose(b.sketch, a.sketch, rtol=0, atol=1e-10 * np.abs(a.sketch).max())
    direct = x.T @ (x @ projection(1024, 0))
    np.testing.assert_allclose(a.sketch, direct, rtol=0, atol=1e-10 * np.abs(direct).max())
    np.testing.assert_allclose(np.asarray(variances(a)), x.var(0, ddof=1), rtol=1e-9)


@pytest.mark.usefixtures("small")
def test_a_cloud_says_what_is_exact_estimated_and_missing() -> None:
    x = cloud(3000, 1024, 1.0)
    found = {one.metric: one for one in measure_cloud(summed(x), neighbours=False).estimates["all"]}
    exact = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert "sketch of 512 axes" in found["isoscore"].note
    assert found["isoscore"].value == pytest.approx(OF_EIGENVALUES["isoscore"](exact, 3000), rel=0.02)
    assert found["isoscore"].low is not None
    for name in ("condition_number", "power_law_alpha", "effective_rank"):
        assert found[name].value is None, name
    assert "sketch" not in found["mean_cosine"].note
    assert "sketch" not in found["outlier_dimensions"].note


@pytest.mark.usefixtures("small")
def test_the_entropy_of_a_steep_spectrum_is_that_of_the_exact_one() -> None:
    x = cloud(3000, 1024, 2.0)
    found = {one.metric: one.value for one in measure_cloud(summed(x), neighbours=False).estimates["all"]}
    exact = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert found["effective_rank"] == pytest.approx(OF_EIGENVALUES["effective_rank"](exact, 3000), rel=0.05)


def test_above_4096_memory_is_d_times_k() -> None:
    moments = Moments(5000, reservoir=16)
    assert moments.sketched
    assert not moments.spectrum
    assert max(array.size for array in moments.state().values()) <= 5000 * 544
    assert not Moments(70_000, reservoir=16).sketched
