"""Computations side by side keep to the threads that they were given."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from anisoscope.runs.work.ahead import in_order


def _most_threads() -> int:
    np.linalg.eigvalsh(np.eye(4))  # so that the library is there
    return max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (2, 2), (1, 2)])
def test_linear_algebra_uses_no_more_threads_than_a_call_has(workers: int, threads: int) -> None:
    before = _most_threads()
    found = list(in_order([_most_threads] * 3, workers=workers, threads=threads))
    assert max(found) <= threads // workers
    assert _most_threads() == before
