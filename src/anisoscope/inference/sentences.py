"""The sentence of a verdict: what kind of anisotropy, how much, against which null, and what follows from it.

The words come from the rules in `verdict`; here they are put beside their numbers. An average is compared with what
the average of as many isotropic vectors gives, 0 ± its standard deviation, and never with the cosine of one pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anisoscope.inference.thresholds import Thresholds

if TYPE_CHECKING:
    from anisoscope.inference.verdict import Number

    Numbers = Mapping[str, Number]


def sentence_on(words: tuple[str, ...], numbers: Numbers, things: str, limits: Thresholds) -> str:
    """One sentence for one cloud; `things` are what its vectors stand for."""
    name = ", ".join(words)
    parts = [_of_word(word, numbers, things, limits) for word in words]
    return f"{name[0].upper()}{name[1:]}: {'; '.join(part for part in parts if part)}."


def _of_word(word: str, numbers: Numbers, things: str, limits: Thresholds) -> str:
    if word == "drifted":
        return f"{_cosine(numbers, things)}{_energy(numbers)}, so compare a cosine with this average, not with 0"
    if word == "looks drifted":
        return _cosine(numbers, things)
    if word == "too few sequences to be sure":
        return _why_unsure(numbers)
    if word == "dominated by outlier dimensions":
        return _outliers(numbers, limits)
    if word == "few-dimensional":
        return f"{_dimensions(numbers)}, so some directions hold far more than others"
    if word == "too few samples to say":
        return _why_too_few(numbers, things, limits)
    if word == "cannot say":
        return f"{_cosine(numbers, things)}, and the spectrum was not measured"
    if word == "no drift seen; spectrum not measured":
        return f"{_cosine(numbers, things)}, which says nothing about the shape of the cloud"
    return "; ".join(filter(None, (_cosine(numbers, things), _dimensions(numbers))))


def _cosine(numbers: Numbers, things: str) -> str:
    cosine = numbers["mean_cosine"]
    spread = "" if cosine.null_sd is None else f" ± {cosine.null_sd:.1g}"
    against = f"{_support(numbers)}, isotropic: 0{spread}"
    value = apart(cosine.value, cosine.low, cosine.high)[0]
    return f"two {things} drawn at random have cosine {value} on average ({against})"


def _support(numbers: Numbers) -> str:
    """The interval of the average cosine, or why there is none and what was asked instead."""
    cosine, sequences, p = numbers["mean_cosine"], _value(numbers, "sequences"), _value(numbers, "rayleigh_p")
    if cosine.low is not None:
        _, low, high = apart(cosine.value, cosine.low, cosine.high)
        return f"95 % interval {low} to {high}"
    known = _no_interval(sequences)
    return known if p is None else f"{known}, Rayleigh p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'}"


def _no_interval(sequences: float | None) -> str:
    if sequences is None:
        return "no interval"
    return f"no interval from {sequences:.0f} sequence{'' if sequences == 1 else 's'}"


def short(value: float | None) -> str:
    """Two decimals, or one significant digit of what they would hide.

    >>> short(0.738), short(-0.00031), short(0.0)
    ('0.74', '-0.0003', '0')
    """
    if value is None:
        return "missing"
    return f"{value:.2f}" if abs(value) >= 0.005 else f"{value:.1g}"


def apart(value: float | None, low: float | None, high: float | None) -> tuple[str, str, str]:
    """A value and its interval with two decimals, or with as many as show that the interval has a width.

    >>> apart(0.5227, 0.5132, 0.5322)
    ('0.52', '0.51', '0.53')
    >>> apart(0.9781, 0.9771, 0.9791), apart(-0.0001, -0.0003, 0.0002)
    (('0.978', '0.977', '0.979'), ('-0.0001', '-0.0003', '0.0002'))
    """
    plain = short(value), short(low), short(high)
    if value is None or low is None or high is None or not low < value < high:
        return plain
    for places in range(2, 7):
        written = f"{value:z.{places}f}", f"{low:z.{places}f}", f"{high:z.{places}f}"
        if len(set(written)) == 3:
            return written
    return plain


def _energy(numbers: Numbers) -> str:
    share = _value(numbers, "drift_ratio")
    return "" if share is None else f"; {100 * share:.0f} % of the energy is one common vector"


def _why_unsure(numbers: Numbers) -> str:
    wide = numbers["mean_cosine"].low is not None
    return "the interval is too wide to be sure" if wide else "an interval needs more sequences"


def _outliers(numbers: Numbers, limits: Thresholds) -> str:
    share, count = _value(numbers, "outlier_share"), _value(numbers, "outlier_dimensions")
    if share is not None and count is not None and share >= limits.outlier_share:
        some = "1 dimension holds" if count == 1 else f"{count:.0f} dimensions hold"
        return f"{some} {100 * share:.0f} % of the variance"
    carried = _value(numbers, "cosine_share")
    return (
        ""
        if carried is None
        else f"{limits.cosine_dimensions} dimensions carry {100 * carried:.0f} % of the average cosine"
    )


def _dimensions(numbers: Numbers) -> str:
    ratio, d = _value(numbers, "participation_ratio_unbiased"), _value(numbers, "dimension")
    if ratio is None or d is None:
        return ""
    ratio = min(ratio, d)  # an unbiased estimate may lie beyond
    return f"the variance is as uneven as if it filled {ratio:.3g} of {d:.0f} dimensions (isotropic: {d:.0f})"


def _why_too_few(numbers: Numbers, things: str, limits: Thresholds) -> str:
    n, d = numbers["mean_cosine"].n or 0, _value(numbers, "dimension")
    if n < limits.vectors or d is None:
        return f"there are {n} {things}, and at least {limits.vectors} are needed"
    fewest = f"fewer than {limits.vectors_per_dimension} for each of {d:.0f} dimensions"
    return f"{_cosine(numbers, things)}, but {n} {things} are {fewest}"


def _value(numbers: Numbers, name: str) -> float | None:
    return numbers[name].value if name in numbers else None


def _besides(counts: Mapping[str, int]) -> str:
    words = ", ".join(f"{count} also {word}" for word, count in counts.items())
    return f" ({words})" if words else ""


def sentence_on_many(
    counts: Mapping[str, int],
    besides: Mapping[str, Mapping[str, int]],
    site: str | None,
    largest: Number | None,
    sequences: float | None = None,
) -> str:
    """One sentence for the sites of a model, from how many of them got which word first, and which ones besides.

    `sequences`: those that the largest cosine is of, named where they are too few for an interval.
    """
    (word, count), *others = counts.items()
    total = sum(counts.values())
    known = f"{word} at {'all' if count == total else f'{count} of'} {total} sites{_besides(besides[word])}"
    told = [f"{word} at {count}{_besides(besides[word])}" for word, count in others]
    parts = ", ".join([known[0].upper() + known[1:], *told])
    if largest is None or largest.value is None:
        return f"{parts}."
    value, low, high = apart(largest.value, largest.low, largest.high)
    ends = f" ({_no_interval(sequences)})" if largest.low is None else f" ({low} to {high})"
    return f"{parts}; the average cosine is largest at {site}: {value}{ends}."
