"""Statistics do not depend on how many threads share a tile or a chunk of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from anisoscope.accumulate import products
from anisoscope.accumulate.attention.score_bins import count_cells, fold_cells, score_edges
from anisoscope.accumulate.attention.tiles import _median
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.threads import by_slices, shared_out, small_matrices, use_threads
from anisoscope.accumulate.threads import threads as threads_now


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_slices_cover_everything_once(threads: int, n: int) -> None:
    assert [i for part in by_slices(lambda some: list(range(n)[some]), n) for i in part] == list(range(n))


def test_threads_of_the_pool_share_out_nothing() -> None:
    """Before, `--threads 2` let two of them wait for work that only they could do."""
    with use_threads(4):
        assert by_slices(lambda _: threads_now(), 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("keys", [6, 7])
def test_medians_and_counts_are_those_of_numpy(threads: int, keys: int) -> None:
    x = torch.randn(2, 3, 5, keys, generator=torch.Generator().manual_seed(0))
    seen = torch.full((2, 1, 5), keys)
    p = x.softmax(-1)
    np.testing.assert_array_equal(_median(p, None, seen).numpy(), np.median(p.numpy(), axis=-1))
    for head, counts in enumerate(fold_cells(count_cells(x)).numpy()):
        assert np.array_equal(counts, np.histogram(x[:, head].numpy().astype(float), bins=score_edges())[0])


@pytest.mark.parametrize("inference", [False, True])
def test_moments_are_those_of_brute_force(threads: int, inference: bool) -> None:
    """Stretches of 40 rows, which three threads share; a sequence goes on in the next chunk."""
    x = torch.randn(2 * 2560, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    keys, positions = np.repeat(np.arange(len(x) // 40, dtype=np.uint64), 40), np.tile(np.arange(40), len(x) // 40)
    moments = Moments(6)
    with torch.inference_mode(inference):
        for part in np.split(np.arange(len(x)), [2570]):
            some = x.clone()[part]
            moments.update(some, sequences=keys[part], positions=positions[part], first=positions[part] == 0)
    moments.seal()
    rows, rest = x.double().numpy(), positions > 0
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sums = moments.sums("rest")
    assert sums.n == rest.sum()
    assert sums.second is not None
    np.testing.assert_allclose(sums.sum_x, rows[rest].sum(0), rtol=1e-12)
    np.testing.assert_allclose(sums.sum_unit, units[rest].sum(0), rtol=1e-12)
    np.testing.assert_allclose(sums.second, rows[rest].T @ rows[rest], rtol=1e-5)
    np.testing.assert_allclose(moments.sums("first").sum_unit, units[~rest].sum(0), rtol=1e-12)


def test_what_is_shared_out_gives_the_threads_back(threads: int) -> None:
    with shared_out(), shared_out():
        assert torch.get_num_threads() == 1
        assert len(by_slices(lambda some: some, 9)) == threads
    assert torch.get_num_threads() == threads
    with pytest.raises(ZeroDivisionError), shared_out():
        by_slices(lambda some: 1 // (some.start - some.start), 9)
    assert torch.get_num_threads() == threads
    assert len(by_slices(lambda some: some, 9)) == threads
    assert len(by_slices(lambda some: some, 9, among=1)) == 1


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_linear_algebra_is_on_one_thread_within_whoever_asked_first() -> None:
    """threadpoolctl obeys the first thread that sets a limit, and no other after it."""
    with ThreadPoolExecutor(1) as pool, threadpool_limits(2, user_api="blas"):
        for run in (lambda: pool.submit(within).result(), within):
            assert run() == {1}
            assert blas_threads() == {2}


def test_a_number_of_threads_is_that_of_linear_algebra_too() -> None:
    before = blas_threads()
    with use_threads(1):
        assert blas_threads() == {1}
        assert within() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before


def within() -> set[int]:
    with small_matrices():
        return blas_threads()


@pytest.mark.parametrize("number", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_begun_beside_the_sums_are_those_of_brute_force(
    number: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About the mean of a few rows, of which none is a first position; drift and first positions are large."""
    rng, d = np.random.default_rng(0), 256
    x = (rng.standard_normal((9000, d)) + 1000 * rng.standard_normal(d)).astype(dtype)
    first = np.arange(len(x)) % 50 == 0
    x[first] *= 100
    begun, begin = [], products.begin
    monkeypatch.setattr(products, "begin", lambda *given: begun.append(found := begin(*given)) or found)
    moments = Moments(d)
    with use_threads(number):
        moments.update(x, first=first)
        assert torch.get_num_threads() == number  # whichever thread was the first to ask for one thread of numpy
    assert [one is not None for one in begun] == [True, False]  # the rest of the rows are too few
    for part, rows in (("rest", x[~first].astype(float)), ("first", x[first].astype(float))):
        sums = moments.sums(part)
        assert sums.second is not None
        spread = sums.second / len(rows) - np.outer(rows.mean(0), rows.mean(0))
        expected = np.cov(rows.T, bias=True)
        scale = expected.diagonal().max() if part == "rest" else np.square(rows).mean()
        np.testing.assert_allclose(spread, expected, atol=scale * (2e-6 if dtype == np.float32 else 2e-7))


def test_nothing_that_was_begun_counts_where_a_row_has_no_direction() -> None:
    x = np.random.default_rng(0).standard_normal((4096, 256)).astype(np.float32)
    x[[0, 700]], x[32] = 0.0, np.nan
    good = np.isfinite(x).all(1) & x.any(1)
    found = []
    for rows in (x, x[good]):
        moments = Moments(256)
        with use_threads(2):
            moments.update(rows)
        found.append(moments.sums().second)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-2)
