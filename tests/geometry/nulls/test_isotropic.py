"""Nulls against simulation, against scipy's laws, and against the numbers on record."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import betaincinv, xlog1py
from scipy.stats import beta, ks_2samp, kstest

from anisoscope.errors import UsageError
from anisoscope.geometry import spectrum
from anisoscope.geometry.cosine import mean_cosine, resultant
from anisoscope.geometry.neighbours import hubness, mle_dimension, nearest, twonn
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.nulls.wishart import Noise


def clouds(n: int, d: int, draws: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((draws, n, d))


def unit_sums(n: int, d: int, draws: int) -> np.ndarray:
    x = clouds(n, d, draws)
    return (x / np.linalg.norm(x, axis=2, keepdims=True)).sum(axis=1)


@pytest.mark.parametrize("d", [2, 3, 8, 768])
def test_cosine_law_is_beta(d: int) -> None:
    law = beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)
    c = np.linspace(-0.9, 0.9, 37)
    np.testing.assert_allclose(null.cosine_density(c, d), law.pdf(c), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(null.cosine_cdf(c, d), law.cdf(c), rtol=1e-10)
    p = np.array([1e-6, 0.025, 0.5, 0.975])
    np.testing.assert_allclose(null.cosine_quantile(p, d), law.ppf(p), atol=1e-12)
    np.testing.assert_allclose(null.cosine_cdf(null.cosine_quantile(p, d), d), p, rtol=1e-5)
    assert null.cosine_mean_square(d) == pytest.approx(law.var(), rel=1e-12)
    assert null.cosine_mean_absolute(d) == pytest.approx(law.expect(abs), rel=1e-6)


@pytest.mark.parametrize("d", [2, 3, 4, 40, 41, 42, 768, 4096, 10**6])
def test_quantiles_and_densities_have_all_the_digits_of_scipys(d: int) -> None:
    half, p = (d - 1) / 2, np.array([[2e-4, 0.025, 0.3], [0.5, 0.975, 0.9998]])
    np.testing.assert_allclose(null.cosine_quantile(p, d), 2 * betaincinv(half, half, p) - 1, atol=1e-12 * d**-0.5)
    c = d**-0.5 * np.linspace(-0.9, 0.9, 19)
    expected = np.exp(xlog1py((d - 3) / 2, -c * c)) / float(mpmath.beta(0.5, half))
    np.testing.assert_allclose(null.cosine_density(c, d), expected, rtol=1e-12)
    assert null.cosine_mean_absolute(d) == pytest.approx(float(mpmath.beta(0.5, d / 2) / mpmath.pi), rel=1e-12)


def test_cosine_law_outside_its_range_and_for_one_number() -> None:
    np.testing.assert_array_equal(null.cosine_density([-1.5, 1.5], 5), [0.0, 0.0])
    np.testing.assert_array_equal(null.cosine_cdf([-1.5, 1.5], 5), [0.0, 1.0])
    assert isinstance(null.cosine_quantile(0.9, 5), float)
    with pytest.raises(UsageError):
        null.cosine_quantile(0.5, 1)


def test_equivalent_dimension_reads_the_dimension_of_an_isotropic_cloud() -> None:
    x = clouds(400, 30, 1)[0]
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = (u @ u.T)[np.triu_indices(400, k=1)]
    assert null.equivalent_dimension(np.square(cosines).mean()) == pytest.approx(30, rel=0.02)
    assert null.equivalent_dimension(0.0) is None


@pytest.mark.parametrize(("n", "d"), [(2, 5), (5, 3), (10, 50), (80, 12)])
def test_average_cosine_has_the_stated_mean_and_sd(n: int, d: int) -> None:
    found = mean_cosine(unit_sums(n, d, 8000), np.full(8000, n))
    sd = null.mean_cosine_sd(n, d)
    assert sd is not None
    assert found.mean() == pytest.approx(0, abs=4 * sd / np.sqrt(8000))
    assert found.std() == pytest.approx(sd, rel=0.03)


def test_no_pair_no_null() -> None:
    assert null.mean_cosine_sd(1, 5) is None
    assert null.direction_null("mean_cosine", 0, 5) is None
    assert null.direction_null("mean_norm", 10, 5) is None


def test_resultant_and_drift_ratio_nulls() -> None:
    found = resultant(unit_sums(60, 20, 3000), np.full(3000, 60))
    expected = null.direction_null("resultant", 60, 20)
    assert expected is not None
    assert expected.sd is not None
    assert found.mean() == pytest.approx(expected.value, rel=5e-3)
    assert found.std() == pytest.approx(expected.sd, rel=0.06)
    ratio = null.direction_null("drift_ratio", 60, 20)
    assert ratio is not None
    assert ratio.value == 1 / 60


@pytest.mark.parametrize(("f", "d"), [(5, 3), (3, 5), (20, 8), (1, 6), (40, 40)])
def test_simulated_spectra_have_the_law_of_gaussian_clouds(f: int, d: int) -> None:
    drawn = Noise(f, d).draw(1500, seed=1)
    x = clouds(f, d, 1500, seed=2)
    direct = np.linalg.eigvalsh(x.transpose(0, 2, 1) @ x)[:, ::-1]
    assert ks_2samp(drawn[:, 0], direct[:, 0]).pvalue > 0.01
    assert ks_2samp(drawn.sum(axis=1), direct.sum(axis=1)).pvalue > 0.01
    assert drawn.shape == (1500, min(f, d))


@pytest.mark.parametrize(("n", "d"), [(40, 100), (101, 100), (300, 30), (1000, 60), (60, 17), (8, 40), (50, 4)])
@pytest.mark.parametrize(
    "metric",
    ["isoscore", "participation_ratio", "participation_ratio_unbiased", "effective_rank", "rankme", "pc1_share"],
)
def test_spectral_null_has_the_mean_and_sd_of_simulated_clouds(metric: str, n: int, d: int) -> None:
    expected = null.spectral_null(metric, n, d)
    found = measured(metric, n, d)
    assert expected.value is not None
    assert expected.sd is not None
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(expected.value, abs=4.5 * error + 0.15 * expected.sd)
    assert expected.sd == pytest.approx(np.std(found), rel=0.3)


def measured(metric: str, n: int, d: int, draws: int = 120) -> np.ndarray:
    values = [
        spectrum.eigenvalues_from_rows(x, centred=metric != "rankme") for x in clouds(n, d, draws, seed=n * 1000 + d)
    ]
    stack = np.array(values)
    if metric == "participation_ratio_unbiased":
        return spectrum.participation_ratio_unbiased(stack.sum(axis=1), np.square(stack).sum(axis=1), np.full(draws, n))
    if metric == "rankme":
        return spectrum.rankme(stack, n=n)
    return getattr(spectrum, metric)(stack)


def test_stable_rank_null_is_that_of_simulated_clouds() -> None:
    found, expected = measured("stable_rank", 300, 30), null.spectral_null("stable_rank", 300, 30)
    assert expected.value == pytest.approx(found.mean(), rel=0.02)
    assert expected.sd == pytest.approx(found.std(), rel=0.3)


@pytest.mark.parametrize(("n", "d"), [(2000, 100), (60, 100)])
def test_nulls_from_the_typical_spectrum_are_near_simulated_clouds(n: int, d: int) -> None:
    for metric, tolerance in (("explained_k", 0.6), ("power_law_alpha", 0.02)):
        found = measured(metric, n, d, draws=30)
        expected = null.spectral_null(metric, n, d)
        assert expected.value == pytest.approx(found.mean(), abs=tolerance), metric
        assert expected.how == "Marchenko–Pastur quantiles"
    condition = null.spectral_null("condition_number", n, d).value
    if n > d:
        assert condition == pytest.approx(measured("condition_number", n, d, draws=30).mean(), rel=0.03)
    else:
        assert condition is None


def test_the_numbers_on_record_for_an_isotropic_cloud_of_256_dimensions() -> None:
    sizes = (64, 128, 256, 512, 1024)
    on_record = {
        "participation_ratio": (50.2, 84.6, 127.9, 170.4, 204.4),
        "rankme": (61.7, 118.4, 205.9, 237.0, 247.3),
        "effective_rank": (55.4, 98.8, 155.1, 199.1, 225.7),
    }
    for metric, values in on_record.items():
        found = [null.spectral_null(metric, n, 256).value for n in sizes]
        assert found == pytest.approx(list(values), abs=0.6), metric
    assert null.spectral_null("isoscore", 256, 256).value == pytest.approx(0.498, abs=0.003)
    assert null.spectral_null("isoscore", 4096, 256).value == pytest.approx(0.940, abs=0.001)


def test_how_says_where_the_number_comes_from() -> None:
    assert null.spectral_null("isoscore", 1000, 64).how == "closed form"
    assert null.spectral_null("isoscore", 1000, 4).how.startswith("simulation")
    assert null.spectral_null("isoscore", 10, 640).how.startswith("simulation")
    assert null.spectral_null("uniformity", 1000, 64).value == pytest.approx(-4 + 8 / 64, abs=0.01)


def test_the_null_is_missing_where_the_metric_is() -> None:
    assert null.spectral_null("isoscore", 1, 10).value is None
    assert null.spectral_null("isoscore", 10, 1).value is None
    assert null.spectral_null("power_law_alpha", 100, 12).value is None
    assert null.spectral_null("condition_number", 10, 12).value is None
    assert null.neighbour_null("twonn", 5, 3).value is None


def test_unknown_metrics_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="effective_rank"):
        null.spectral_null("isocore", 100, 10)
    with pytest.raises(UsageError, match="hubness"):
        null.neighbour_null("isoscore", 100, 10)


def test_neighbour_nulls_are_those_of_a_gaussian_cloud() -> None:
    distances, indices = nearest(clouds(400, 30, 1, seed=9)[0], 10)
    for metric, found in (
        ("twonn", twonn(distances)),
        ("mle_dimension", mle_dimension(distances, 10)),
        ("hubness", hubness(indices, 400)),
    ):
        expected = null.neighbour_null(metric, 400, 30)
        assert expected.value == pytest.approx(found, rel=0.25), metric
        assert "simulation" in expected.how
    assert 10 < (null.neighbour_null("twonn", 400, 30).value or 0) < 25  # 400 points do not fill 30 dimensions


def test_typical_spectrum_has_the_law_of_a_large_one() -> None:
    typical = Noise(400, 200).typical_spectrum()
    x = clouds(400, 200, 1)[0]
    direct = np.linalg.eigvalsh(x.T @ x / 400)
    assert kstest(direct, lambda v: np.searchsorted(np.sort(typical), v) / 200).pvalue > 0.5
    assert (np.diff(typical) <= 0).all()
    assert typical.mean() == pytest.approx(1.0, abs=0.005)
