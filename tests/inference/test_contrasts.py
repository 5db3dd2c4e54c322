"""Tests of differences and rates against scipy and simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from anisoscope.inference.contrasts import equivalence_bound, holm, paired_p


def p_of(draws: np.ndarray, mean: float, **options: Any) -> Any:
    found: Any = stats.ttest_1samp(draws, mean, **options)
    return found.pvalue


DRAWS = np.random.default_rng(0).normal(0.03, 0.1, 10)


def test_a_difference_is_tested_as_scipy_tests_it() -> None:
    assert paired_p(list(DRAWS)) == pytest.approx(p_of(DRAWS, 0), rel=1e-12)
    assert paired_p([0.1]) is None
    assert equivalence_bound([0.1]) is None


def test_at_the_bound_of_equivalence_the_weaker_one_sided_test_is_at_its_level() -> None:
    bound = equivalence_bound(list(DRAWS))
    assert bound is not None
    sides = [p_of(DRAWS, -bound, alternative="greater"), p_of(DRAWS, bound, alternative="less")]
    assert max(sides) == pytest.approx(0.05, rel=1e-9)


def test_holm_rejects_what_the_procedure_rejects() -> None:
    p = [0.001, 0.02, 0.015, 0.2, 0.04]
    for level in np.linspace(0.001, 0.999, 57):
        rejected = set()
        for rank, place in enumerate(np.argsort(p)):  # step down until the first that stays
            if p[place] > level / (len(p) - rank):
                break
            rejected.add(int(place))
        assert {place for place, value in enumerate(holm(p)) if value <= level} == rejected
