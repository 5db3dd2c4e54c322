"""Our numbers beside those of published packages: IsoScore, scikit-dimension, scipy, and Machina & Mercer's steps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from anisoscope.geometry.cosine import mean_cosine, resultant
from anisoscope.geometry.directional import vmf_kappa
from anisoscope.geometry.neighbours import duplicates, mle_dimension, nearest, twonn
from anisoscope.geometry.partition import partition
from anisoscope.geometry.spectrum import covariance, eigenvalues, eigenvalues_from_rows, isoscore


def cloud(seed: int, n: int, d: int, decay: float = 1.0, drift: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -decay + drift


@pytest.mark.parametrize(("n", "d"), [(500, 30), (40, 60), (2000, 8)])
@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0])
def test_isoscore_equals_the_package(n: int, d: int, decay: float) -> None:
    # Version 2 takes (n, d); version 1 took (d, n). It computes √d in float32, hence the tolerance.
    package = pytest.importorskip("IsoScore.IsoScore")
    x = cloud(0, n, d, decay, drift=3.0)
    published = float(package.IsoScore(x))
    assert isoscore(eigenvalues_from_rows(x)) == pytest.approx(published, abs=1e-6)
    from_sums = eigenvalues(covariance(x.T @ x, x.sum(axis=0), n))
    assert isoscore(from_sums) == pytest.approx(published, abs=1e-6)


@pytest.fixture(scope="module")
def estimators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("skdim.id")


@pytest.mark.parametrize("d", [3, 20, 40])  # the package takes another road above 25 dimensions
def test_twonn_equals_scikit_dimension(estimators, d: int) -> None:
    x = cloud(1, 600, d, 0.5)
    assert twonn(nearest(x, 2)[0]) == pytest.approx(estimators.TwoNN().fit(x).dimension_, rel=1e-9)
    other = estimators.TwoNN(discard_fraction=0.3).fit(x).dimension_
    assert twonn(nearest(x, 2)[0], discard=0.3) == pytest.approx(other, rel=1e-9)


def test_twonn_with_duplicates_equals_scikit_dimension(estimators) -> None:
    x = np.round(cloud(1, 600, 3), 1)
    distances = nearest(x, 2)[0]
    assert duplicates(distances) > 10
    with pytest.warns(UserWarning, match=f"Dropping {duplicates(distances)} points"):
        published = estimators.TwoNN().fit(x).dimension_
    assert twonn(distances) == pytest.approx(published, rel=1e-9)


@pytest.mark.parametrize("k", [5, 20])
def test_mle_equals_scikit_dimension(estimators, k: int) -> None:
    x = cloud(2, 500, 10, 0.3)
    published = estimators.MLE().fit(x, n_neighbors=k).dimension_
    assert mle_dimension(nearest(x, k)[0], k) == pytest.approx(published, rel=1e-9)


@pytest.mark.parametrize("d", [3, 12])
@pytest.mark.parametrize("kappa", [0.5, 8.0, 200.0])
def test_concentration_equals_scipy_fit(d: int, kappa: float) -> None:
    from scipy.stats import vonmises_fisher

    u = vonmises_fisher(np.eye(d)[0], kappa, seed=0).rvs(800)
    _, published = vonmises_fisher.fit(u)
    assert vmf_kappa(resultant(u.sum(axis=0), len(u)), d) == pytest.approx(published, rel=1e-6)


def test_average_cosine_equals_scipy_pairs() -> None:
    from scipy.spatial.distance import pdist

    x = cloud(3, 400, 24, 0.5, drift=0.4)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert mean_cosine(u.sum(axis=0), 400) == pytest.approx(1 - pdist(x, "cosine").mean(), abs=1e-12)


@pytest.mark.parametrize("centred", [False, True])
def test_partition_repeats_the_published_float32_path(centred: bool) -> None:
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(cloud(4, 3000, 32, 0.3, drift=0.05).astype(np.float32))
    matrix = w - w.mean(0) if centred else w
    vectors = torch.linalg.eigh(matrix.T @ matrix).eigenvectors
    z = torch.exp(matrix @ vectors).sum(0)
    published = float(z.min() / z.max())
    repeated = partition(w.numpy(), centred=centred, dtype="float32", directions=vectors.numpy())
    exact = partition(w.numpy(), centred=centred, directions=vectors.numpy())
    assert repeated.value == pytest.approx(published, rel=1e-5)
    assert exact.value == pytest.approx(published, rel=1e-4)
    signless = partition(w.numpy(), centred=centred, convention="both")
    assert signless.value == pytest.approx(
        partition(w.numpy(), centred=centred, convention="both", directions=vectors.numpy()).value, rel=1e-4
    )
