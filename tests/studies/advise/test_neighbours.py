"""The streamed search under every variant, against scikit-learn on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from anisoscope.geometry.corrections import fit
from anisoscope.studies.advise.neighbours import Best, Search
from anisoscope.studies.advise.variants import variants

N, D, K = 500, 24, 10
X = (np.random.default_rng(0).standard_normal((N, D)) @ np.diag(np.geomspace(3, 0.3, D)) + 0.8).astype(np.float32)
OWN = np.array([0, 3, 77, 250, 251, 499])


def searched(blocks: list[int]) -> Search:
    search = Search(variants(fit(X), X, [D, 8]), X[OWN], OWN, k=K)
    for rows in np.split(np.arange(N), blocks):
        search.add(X[rows], rows)
    return search


def whole(correction: str, dims: int) -> Any:
    """The stored vectors by scikit-learn, in double precision."""
    x = X.astype(float)
    if correction == "raw":
        return normalize(x[:, :dims])
    if correction == "centred":
        return normalize(x - x.mean(0) if dims == D else PCA(dims).fit_transform(x))
    values, axes = np.linalg.eigh(np.cov(x.T, ddof=0))
    values, axes = values[::-1], axes[:, ::-1]
    return normalize(((x - x.mean(0)) @ axes / np.sqrt(values + 1e-3 * values.mean()))[:, :dims])


def neighbours(rows: np.ndarray, metric: str) -> np.ndarray:
    found = NearestNeighbors(n_neighbors=K + 1, algorithm="brute", metric=metric).fit(rows)
    near = found.kneighbors(rows[OWN], return_distance=False)
    return np.array([[one for one in row if one != own][:K] for row, own in zip(near, OWN, strict=True)])


def test_the_neighbours_of_every_correction_and_cut_are_those_of_the_whole_array() -> None:
    for variant, best in searched([128, 256]).best.items():
        if variant.code == "float32":
            expected = neighbours(whole(variant.correction, variant.dims), "cosine")
            assert [set(row[:K]) for row in best.numbers] == [set(row) for row in expected], variant.site


@pytest.mark.parametrize("correction", ["raw", "centred"])
def test_signs_order_rows_by_hamming_distance_and_ties_by_number(correction: str) -> None:
    best = next(b for v, b in searched([7, 300]).best.items() if v.site == f"{correction}.binary" and v.dims == D)
    bits = whole(correction, D) > 0
    distances = (bits[OWN][:, None] != bits[None]).sum(2)
    distances[np.arange(len(OWN)), OWN] = D + 1
    expected = np.argsort(distances, axis=1, kind="stable")[:, :K]
    assert best.numbers.tolist() == expected.tolist()


def test_blocks_do_not_matter() -> None:
    one, many = searched([]), searched(list(range(3, N, 13)))
    for a, b in zip(one.best.values(), many.best.values(), strict=True):
        assert [set(row) for row in a.numbers] == [set(row) for row in b.numbers]


def test_codes_of_eight_bits_lose_less_than_those_of_four() -> None:
    kept = {variant.site: shares.mean() for variant, shares in searched([256]).overlap().items() if variant.dims == D}
    assert kept["raw.float32"] == 1.0
    assert kept["raw.int8"] > kept["raw.int4"] > kept["raw.binary"]


def test_fewer_rows_than_neighbours_leave_places_empty() -> None:
    best = Best(2, 4)
    best.add(np.array([[0.1, 0.2], [0.2, 0.1]], np.float32), np.array([5, 9]))
    assert best.numbers.tolist() == [[9, 5, -1, -1], [5, 9, -1, -1]]
