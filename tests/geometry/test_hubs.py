"""Hubs against loops over the definitions of scikit-hubness, and scipy's skewness."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anisoscope.geometry.hubs import find_hubs, isotropic_hubs

M, D, K = 80, 10, 5
X = np.random.default_rng(0).standard_normal((M, D)) * np.geomspace(3, 0.3, D) + 0.4


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def counted(similarity: np.ndarray) -> np.ndarray:
    found = np.zeros(similarity.shape[1], int)
    for i, row in enumerate(similarity):
        others = sorted((j for j in range(len(row)) if j != i), key=lambda j: -row[j])
        found[others[:K]] += 1
    return found


COSINES = np.array([[cosine(a, b) for b in X] for a in X])


def test_occurrence_and_its_skewness() -> None:
    found, expected = find_hubs(X, k=K), counted(COSINES)
    assert found.occurrence.tolist() == expected.tolist()
    assert found.skewness == pytest.approx(stats.skew(expected))
    assert found.anti == np.mean(expected == 0)
    assert found.occurrence[found.top(1)[0]] == expected.max()


def test_csls_is_that_of_the_paper() -> None:
    near = [np.mean(sorted((COSINES[i, j] for j in range(M) if j != i), reverse=True)[:K]) for i in range(M)]
    expected = np.array([[2 * COSINES[i, j] - near[i] - near[j] for j in range(M)] for i in range(M)])
    assert find_hubs(X, k=K).after_csls == pytest.approx(stats.skew(counted(expected)))


def test_mutual_proximity_is_that_of_scikit_hubness() -> None:
    d = 1 - COSINES
    laws = [stats.norm(*(f(np.delete(d[i], i)) for f in (np.mean, np.std))) for i in range(M)]
    farther = np.array([law.sf(row) for law, row in zip(laws, d, strict=True)])  # P(D_i > d_ij)
    proximity = 1 - farther * farther.T  # d is symmetric
    assert find_hubs(X, k=K).after_mutual_proximity == pytest.approx(stats.skew(counted(-proximity)))


def test_queries_find_documents_but_not_themselves() -> None:
    found = find_hubs(X, queries=X[:20] + 0.01, own=[*range(19), -1], k=1)
    assert found.occurrence.sum() == 20
    assert found.occurrence[19] == 1 + sum(COSINES[:19, 19] == np.sort(COSINES[:19], axis=1)[:, -2])


def test_isotropic_clouds_have_more_hubs_in_more_dimensions() -> None:
    low, high = ([isotropic_hubs(400, d, seed=seed)[0] or 0.0 for seed in range(5)] for d in (3, 100))
    assert min(high) > max(low)
