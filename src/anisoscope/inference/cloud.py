"""Measure a cloud: from its moments to estimates and a verdict. Everything about one site comes together here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anisoscope.accumulate.sums import Sums, variances
from anisoscope.accumulate.threads import suited_to
from anisoscope.geometry import outliers
from anisoscope.inference.directions import direction_estimates
from anisoscope.inference.estimates import Estimate, left_out
from anisoscope.inference.extremes import extreme_estimates
from anisoscope.inference.neighbourhoods import neighbourhood_estimates
from anisoscope.inference.spectra import few_vectors, spectral_estimates
from anisoscope.inference.verdict import Verdict, verdict

if TYPE_CHECKING:
    from anisoscope.accumulate.moments import Moments


@dataclass(frozen=True)
class Cloud:
    """The estimates of one cloud by positions (`all`, `rest`, `first`), and the verdict on all of it."""

    estimates: dict[str, list[Estimate]]
    verdict: Verdict
    notes: tuple[str, ...]


def measure_cloud(
    moments: Moments,
    *,
    spectra: bool = True,
    neighbours: bool = True,
    things: str = "vectors",
    entered: Sums | None = None,
) -> Cloud:
    """All metrics of a cloud; `things` is what the verdict calls its vectors (tokens, frames).

    `entered`: the sums of what the block read whose output this is, for `norm_growth`.

    With first positions kept apart, `rest` and `first` are measured as well; neighbourhoods only over all positions.
    `spectra=False` keeps to directions, which cost nothing.

    >>> import torch
    >>> from anisoscope.accumulate.moments import Moments
    >>> moments = Moments(8)
    >>> moments.update(torch.randn(4000, 8, generator=torch.Generator().manual_seed(0)))
    >>> str(measure_cloud(moments).verdict)
    'isotropic'
    """
    with suited_to(moments.d):
        return _measured(moments, spectra=spectra, neighbours=neighbours, things=things, entered=entered)


def _measured(moments: Moments, *, spectra: bool, neighbours: bool, things: str, entered: Sums | None) -> Cloud:
    sums, sample = moments.sums("all"), moments.reservoir.sample()
    found = direction_estimates(sums) + extreme_estimates(moments.extremes, sample, sums, entered)
    if spectra:
        found += spectral_estimates(sums, sample)
    if neighbours:
        found += neighbourhood_estimates(sample)
    estimates = {"all": found}
    if moments.sums("first").n:
        rest = moments.sums("rest")
        estimates["rest"] = direction_estimates(rest)
        if spectra:
            estimates["rest"] += spectral_estimates(rest, sample.where(~sample.first))
        estimates["first"] = direction_estimates(moments.sums("first"))
    share = _outlier_share(sums) if spectra else None
    notes = _notes(sums, len(sample), moments.reservoir.unfit, spectra=spectra)
    return Cloud(estimates, verdict(found, share, things=things), notes)


def _outlier_share(sums: Sums) -> float | None:
    """How much of the variance the outlier dimensions hold."""
    spread = variances(sums)
    if spread is None or not spread.sum() > 0:
        return None
    return float(spread[outliers.outlier_dimensions(spread)].sum() / spread.sum())


def _notes(sums: Sums, sampled: int, unfit: int, *, spectra: bool) -> tuple[str, ...]:
    """Notes on the numbers that were measured."""
    notes = [few_vectors(sums.n, sums.d)] if spectra else []
    notes += [left_out(sums.zero, "zero vectors")] if sums.zero else []
    notes += [left_out(sums.nonfinite, "vectors with NaN or infinite entries")] if sums.nonfinite else []
    if not sums.squares:
        notes.append("norms beyond 1e±140: metrics that need their squares are missing; rescale the vectors")
    elif spectra and sums.sketch is not None:
        notes.append("spectrum from a sketch: the notes of its rows give the error")
    elif spectra and sums.second is None and sums.n:
        notes.append(f"spectrum from a sample of {sampled} vectors")
    if sums.squares and not sums.fourths:
        notes.append("norms beyond 1e±65: kurtosis, which needs fourth powers, is missing; rescale the vectors")
    if unfit:
        notes.append(f"{unfit} vectors that float32 cannot hold are not in the sample of {sampled}")
    return tuple(filter(None, notes))
