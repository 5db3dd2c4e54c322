"""Statistics of a tile do not depend on how many threads share it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from anisoscope.accumulate.attention.score_bins import count_cells, fold_cells, score_edges
from anisoscope.accumulate.attention.threads import by_slices
from anisoscope.accumulate.attention.tiles import _median


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
    np.testing.assert_array_equal(_median(x, None, seen).numpy(), np.median(x.numpy(), axis=-1))
    for head, counts in enumerate(fold_cells(count_cells(x)).numpy()):
        assert np.array_equal(counts, np.histogram(x[:, head].numpy().astype(float), bins=score_edges())[0])
