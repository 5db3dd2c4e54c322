"""One cloud for each word of the verdict, and the rules at their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.accumulate.moments import Moments
from anisoscope.inference.cloud import Cloud, measure_cloud
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.verdict import verdict

D = 40


def measured(x: np.ndarray, sequences: np.ndarray | None = None) -> Cloud:
    moments = Moments(x.shape[1])
    moments.update(torch.from_numpy(x), sequences=sequences)
    return measure_cloud(moments, neighbours=False)


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, D))


def with_dimension(x: np.ndarray, k: int, *, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    y = x.copy()
    y[:, k] = y[:, k] * scale + shift
    return y


def turned(x: np.ndarray) -> np.ndarray:
    """The cloud in another basis: no dimension stands out."""
    return x @ np.linalg.qr(np.random.default_rng(9).standard_normal((D, D)))[0]


CLOUDS = {
    "isotropic": normal(1000),
    "drifted": normal(1000) + 0.6,
    "few-dimensional": turned(normal(1000) * (np.arange(D) < 3)),
    "weakly anisotropic": normal(1000) * np.linspace(0.05, 1, D) ** 1.5,
    "too few samples to say": normal(200),
    "dominated by outlier dimensions, few-dimensional": with_dimension(normal(1000), 7, scale=30.0),
    "drifted, dominated by outlier dimensions": with_dimension(normal(1000), 7, shift=8.0),
    "drifted, few-dimensional": turned(normal(1000) * (np.arange(D) < 3)) + 0.3,
}


@pytest.mark.parametrize("word", CLOUDS)
def test_each_word_has_its_cloud(word: str) -> None:
    assert str(measured(CLOUDS[word]).verdict) == word


def test_very_few_vectors_say_nothing_however_they_look() -> None:
    assert str(measured(normal(31) + 5.0).verdict) == "too few samples to say"


def test_few_vectors_never_say_isotropic_but_may_show_drift() -> None:
    assert str(measured(normal(10 * D - 1)).verdict) == "too few samples to say"
    assert str(measured(normal(10 * D)).verdict) == "isotropic"
    assert str(measured(normal(60) + 1.0).verdict) == "drifted"


def test_few_vectors_get_a_loud_note() -> None:
    assert any(note.startswith("TOO FEW VECTORS") for note in measured(normal(100)).notes)
    assert measured(normal(1000)).notes == ()


def test_a_cosine_that_a_handful_of_sequences_made_is_not_called_drift() -> None:
    """Six sequences, each around its own centre: the average cosine is large and its interval holds zero."""
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((6, 4)) * 3
    keys = np.array([0, 1, 2, 3, 4, 6], dtype=np.uint64)  # six different jackknife groups
    found = measured(np.repeat(centres, 60, 0) + rng.standard_normal((360, 4)), np.repeat(keys, 60))
    cosine = next(e for e in found.estimates["all"] if e.metric == "mean_cosine")
    assert cosine.value is not None
    assert cosine.low is not None
    assert cosine.value > 0.1
    assert cosine.low < 0
    assert "drifted" not in found.verdict.words


def test_without_an_interval_the_rayleigh_test_decides() -> None:
    def judge(p: float) -> str:
        return str(
            verdict(
                [
                    Estimate("mean_cosine", 0.3, n=1000),
                    Estimate("dimension", 4.0),
                    Estimate("participation_ratio_unbiased", 4.0),
                    Estimate("rayleigh_p", p),
                ]
            )
        )

    assert judge(0.001) == "drifted"
    assert judge(0.2) == "weakly anisotropic"


def test_the_verdict_says_why() -> None:
    assert "average cosine" in measured(CLOUDS["drifted"]).verdict.because
    assert "unbiased participation ratio" in measured(CLOUDS["few-dimensional"]).verdict.because


def test_directions_alone_never_say_isotropic() -> None:
    moments = Moments(D, spectrum=False)
    moments.update(torch.from_numpy(normal(1000)))
    judged = measure_cloud(moments, spectra=False, neighbours=False).verdict
    assert str(judged) == "not drifted"
    assert judged.because.endswith("no spectrum")
