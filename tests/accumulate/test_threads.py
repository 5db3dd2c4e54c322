"""Statistics do not depend on how many threads share a tile or a chunk of vectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from anisoscope.accumulate.attention.score_bins import count_cells, fold_cells, score_edges
from anisoscope.accumulate.attention.tiles import _median
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.threads import by_slices, shared_out


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_slices_cover_everything_once(threads: int, n: int) -> None:
    assert [i for part in by_slices(lambda some: list(range(n)[some]), n) for i in part] == list(range(n))


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
    assert len(by_slices(lambda some: some, 9, alone=True)) == 1
