"""Corrections from few axes and one level beyond them are those of the whole covariance that they describe."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope.accumulate import moments as module
from anisoscope.geometry.corrections import METHODS, Corrections, fit_axes
from anisoscope.studies.remedy.estimator import Remedy

D, K = 60, 9


def both() -> tuple[Corrections, Corrections]:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    values = np.concatenate([np.linspace(9, 2, K), np.full(D - K, 0.3)])
    mean = rng.standard_normal(D)
    return fit_axes(mean, values, basis[:, :K]), Corrections(mean, values, basis, 1)


def cosines(y: np.ndarray) -> np.ndarray:
    units = y / np.linalg.norm(y, axis=1, keepdims=True)
    return units @ units.T


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_cosines_of_the_whole_covariance(method: str) -> None:
    few, whole = both()
    x = np.random.default_rng(1).standard_normal((20, D)) + few.mean
    dims = K if method == "whiten-k" else None
    mine, theirs = few.affine(method, dims=dims), whole.affine(method, dims=dims)
    np.testing.assert_allclose(cosines(mine.apply(x)), cosines(theirs.apply(x)), atol=1e-10)
    np.testing.assert_allclose((x - mine.mean) @ mine.full, mine.apply(x), atol=1e-10)


@pytest.mark.parametrize("method", ["centre", "all-but-the-top", "soft-zca", "whiten"])
def test_in_fewer_dimensions_those_of_the_largest_variance_are_kept(method: str) -> None:
    few, whole = both()
    x = np.random.default_rng(1).standard_normal((20, D)) + few.mean
    mine, theirs = (one.affine(method, dims=4).apply(x) for one in (few, whole))
    assert mine.shape == (20, 4)
    if method != "soft-zca":
        np.testing.assert_allclose(cosines(mine), cosines(theirs), atol=1e-8)


def test_a_remedy_of_many_dimensions_holds_no_square_matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(module, "LARGEST_SPECTRUM", 1023)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 1024)) * np.arange(1, 1025) ** -1.0 + 0.02
    exact = Remedy("soft-zca")
    sketched = Remedy("soft-zca").fit(x)
    made = sketched.fitted()
    assert max(array.size for array in made.arrays.values()) <= 1024 * 512
    monkeypatch.setattr(module, "LARGEST_SPECTRUM", 4096)
    expected = exact.fit(x).transform(x[:200])
    found = sketched.transform(x[:200])
    np.testing.assert_allclose(cosines(found), cosines(expected), atol=0.02)
    assert sketched.threshold(0.01) == pytest.approx(exact.threshold(0.01), abs=0.02)
    again = Remedy.load(sketched.save(f"{tmp_path}/remedy.safetensors"))
    np.testing.assert_array_equal(again.transform(x[:50]), found[:50])
