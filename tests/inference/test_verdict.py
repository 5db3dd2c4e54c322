"""One cloud for each word of the verdict, and the rules at their edges."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from anisoscope.accumulate.moments import Moments
from anisoscope.inference.cloud import Cloud, measure_cloud
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.verdict import Number, Thresholds, Verdict, verdict, verdict_of_many

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
    assert any(note.startswith("too few vectors:") for note in measured(normal(100)).notes)
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
    assert found.verdict.words == ("looks drifted", "too few sequences to be sure")
    assert "interval is too wide" in found.verdict.sentence


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
    assert judge(0.2) == "looks drifted, too few sequences to be sure"


def directions(x: np.ndarray, keys: np.ndarray | None = None, *, things: str = "vectors") -> Cloud:
    moments = Moments(D, spectrum=False)
    moments.update(torch.from_numpy(x), sequences=keys)
    return measure_cloud(moments, spectra=False, neighbours=False, things=things)


def test_directions_alone_never_say_isotropic() -> None:
    judged = directions(normal(1000)).verdict
    assert str(judged) == "no drift seen; spectrum not measured"


def test_a_missing_interval_never_becomes_a_negative_claim() -> None:
    """Two texts: no interval. Whatever the cosine is, nothing may be denied on that ground."""
    keys = np.repeat([1, 2], 500).astype(np.uint64)
    assert str(directions(normal(1000) + 0.6, keys).verdict) == "drifted"  # the Rayleigh test is certain
    assert str(directions(normal(1000), keys).verdict) == "cannot say"
    assert str(measured(normal(1000), keys).verdict) == "looks isotropic, too few sequences to be sure"


def cosine_alone(value: float, low: float | None = None, high: float | None = None, **more: float) -> Verdict:
    estimates = [Estimate("mean_cosine", value, low, high, n=1000), Estimate("dimension", 40.0)]
    return verdict(estimates + [Estimate(name, number) for name, number in more.items()])


@pytest.mark.parametrize(
    ("cosine", "words"),
    [
        ((0.37,), "looks drifted, too few sequences to be sure"),
        ((0.37, -0.1, 0.8), "looks drifted, too few sequences to be sure"),
        ((0.37, 0.3, 0.4), "drifted"),
        ((0.07, 0.06, 0.08), "cannot say"),
        ((0.01, -0.2, 0.2), "cannot say"),
        ((0.01, -0.02, 0.04), "no drift seen; spectrum not measured"),
    ],
)
def test_without_a_spectrum_the_cosine_and_its_interval_decide(cosine: tuple[float, ...], words: str) -> None:
    assert str(cosine_alone(*cosine)) == words


def test_the_sentence_has_the_numbers_and_their_null() -> None:
    found = directions(normal(1000) + 0.6, things="tokens")
    value = {estimate.metric: estimate for estimate in found.estimates["all"]}
    sentence = found.verdict.sentence
    assert sentence.startswith(f"Drifted: two tokens drawn at random have cosine {value['mean_cosine'].value:.2f}")
    assert f"{100 * value['drift_ratio'].value:.0f} % of the energy is one common vector" in sentence  # pyright: ignore
    assert "two vectors" in directions(normal(1000)).verdict.sentence


def test_an_average_is_compared_with_the_spread_of_an_average() -> None:
    """Against simulation: the sd of the average cosine of isotropic clouds of that size, not that of one pair."""
    rng = np.random.default_rng(1)
    units = rng.standard_normal((400, 100, D))
    units /= np.linalg.norm(units, axis=-1, keepdims=True)
    averages = (np.square(units.sum(1)).sum(-1) - 100) / (100 * 99)
    number = measured(normal(100)).verdict.number("mean_cosine")
    assert number is not None
    assert number.null_sd == pytest.approx(averages.std(), rel=0.1)
    assert number.null == 0.0


def test_a_missing_interval_is_said_in_the_sentence() -> None:
    keys = np.repeat([1, 2], 500).astype(np.uint64)
    assert "no interval from 2 sequences, Rayleigh p = " in directions(normal(1000) + 0.6, keys).verdict.sentence
    assert "95 % interval" in directions(normal(1000) + 0.6).verdict.sentence


@pytest.mark.parametrize("word", CLOUDS)
def test_a_verdict_survives_json(word: str) -> None:
    found = measured(CLOUDS[word]).verdict
    assert Verdict.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_thresholds_are_plain_data_and_move_the_verdict() -> None:
    estimates = [Estimate("mean_cosine", 0.3, 0.2, 0.4, n=1000), Estimate("dimension", 40.0)]
    assert Thresholds().as_dict()["drift"] == 0.1
    assert str(verdict(estimates)) == "drifted"
    assert str(verdict(estimates, thresholds=Thresholds(drift=0.5))) == "cannot say"


def test_many_sites_are_counted_and_the_largest_is_named() -> None:
    sites = {"block.0": normal(1000), "block.1": normal(1000) + 0.6, "block.2": normal(1000) + 0.9}
    found = verdict_of_many({site: measured(x).verdict for site, x in sites.items()})
    assert found.words == ("drifted at 2 of 3 sites", "isotropic at 1 of 3 sites")
    assert "largest at block.2" in found.sentence
    one = measured(normal(1000)).verdict
    assert verdict_of_many({"block.0": one}) == one


def test_every_site_counts_once_and_further_words_stand_in_brackets() -> None:
    flat = Verdict(("drifted", "few-dimensional"), (Number("mean_cosine", 0.5),), "")
    weak = Verdict(("weakly anisotropic",), (Number("mean_cosine", 0.07),), "")
    found = verdict_of_many({"block.0": flat, "block.1": weak, "block.2": Verdict(("drifted",), flat.numbers, "")})
    assert found.sentence.startswith("Drifted at 2 of 3 sites (1 also few-dimensional), weakly anisotropic at 1;")
    assert found.words[-1] == "weakly anisotropic at 1 of 3 sites"


def test_few_dimensions_do_not_say_that_the_others_are_empty() -> None:
    """One direction with half of the variance: a participation ratio below d/10, and half of it everywhere else."""
    d = 96
    x = np.random.default_rng(0).standard_normal((4000, d))
    x[:, 0] *= np.sqrt(d - 1)
    found = measured(x).verdict
    assert "few-dimensional" in found.words
    assert "next to nothing" not in found.sentence
    assert re.search(r"as uneven as if it filled 3\.\d+ of 96 dimensions \(isotropic: 96\)", found.sentence)


def test_a_cosine_without_interval_is_said_to_have_none() -> None:
    sites = {f"block.{k}": measured(normal(1000) + k, np.repeat([0, 1], 500)).verdict for k in (1, 2)}
    assert verdict_of_many(sites).sentence.endswith("(no interval from 2 sequences).")


def test_a_narrow_interval_keeps_its_width_in_the_sentence() -> None:
    found = measured(normal(1000) + 2.0).verdict
    value, low, high = re.findall(r"cosine ([\d.]+) .*interval ([\d.]+) to ([\d.]+)", found.sentence)[0]
    assert float(low) < float(value) < float(high)
    many = verdict_of_many({"block.0": found, "block.1": measured(normal(1000)).verdict}).sentence
    assert f"block.0: {value} ({low} to {high})" in many


def test_notes_follow_what_was_measured() -> None:
    assert directions(normal(100)).notes == ()
    kept = Moments(D, spectrum=False)
    kept.update(torch.from_numpy(normal(100)))
    assert len(measure_cloud(kept, neighbours=False).notes) == 2  # few vectors, and a spectrum from the sample
