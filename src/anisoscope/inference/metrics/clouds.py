"""The metrics of a cloud, in the order in which they are estimated: where it points, what shape it has, how its points
lie, what was counted. Formulas and sources are with the functions of `geometry`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anisoscope.geometry import cosine, drift, outliers
from anisoscope.geometry.nulls import extremes
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.nulls.isotropic import NullValue
from anisoscope.geometry.spectrum import OF_EIGENVALUES
from anisoscope.inference.metrics.declaration import Metric, constant


def _direction(name: str, label: str, meaning: str, **more: Any) -> Metric:
    """A metric of directions: 0 or more, with the null of its name, unless it says otherwise."""
    usual = {"low": 0.0, "null": partial(null.direction_null, name)}
    return Metric(name, label, meaning, "direction", paired=True, **usual | more)


_UNIT = ("unit", "n")
_DIRECTIONS = (
    *(
        _direction(name, label, f"Average cosine over {pairs}.", low=-1.0, high=1.0, of=of, reads=reads)
        for name, label, pairs, of, reads in (
            ("mean_cosine", "average cosine", "all pairs of different vectors", cosine.mean_cosine, _UNIT),
            (
                "mean_cosine_inter",
                "cosine between sequences",
                "pairs from different sequences",
                cosine.mean_cosine_inter,
                ("unit", "n", "energy", "pairs"),
            ),
            (
                "mean_cosine_intra",
                "cosine within sequences",
                "pairs from the same sequence",
                cosine.mean_cosine_intra,
                ("energy", "n", "pairs"),
            ),
        )
    ),
    _direction(
        "resultant", "resultant length", "Norm of the mean unit vector.", of=cosine.resultant, reads=_UNIT, high=1.0
    ),
    _direction("mean_norm", "mean norm", "Average norm of the vectors.", of=drift.mean_norm, reads=("norm", "n")),
    _direction(
        "norm_cv",
        "norm variation",
        "Standard deviation of the norms over their mean.",
        of=drift.norm_cv,
        reads=("norm", "norm2", "n"),
    ),
    _direction("drift_norm", "drift norm", "Norm of the mean vector.", of=drift.drift_norm, reads=("x", "n")),
    _direction(
        "drift_ratio",
        "drift ratio",
        "Share of the energy that is the mean vector: its squared norm over the mean squared norm.",
        high=1.0,
        of=drift.drift_ratio,
        reads=("x", "norm2", "n"),
    ),
    _direction(
        "kurtosis",
        "kurtosis of coordinates",
        "E[x⁴]/E[x²]² over all coordinates: 3 if they are Gaussian, large where a few of them dwarf the rest.",
        of=outliers.kurtosis,
        reads=("fourth", "norm2", "n"),
        null=extremes.coordinate_kurtosis,
    ),
    Metric(
        "cosine_share",
        "share of a dimension",
        "Share of the average cosine that one dimension contributes.",
        "direction",
        null=lambda n, d: NullValue(1 / d, None, "exact"),
    ),
    Metric(
        "rayleigh_p",
        "Rayleigh p",
        "p-value of the test that directions are uniform, against a common direction.",
        "direction",
        0.0,
        1.0,
        "p",
        null=constant(0.5),
    ),
    Metric(
        "effective_n",
        "effective n",
        "Number of independent directions that the vectors amount to, given that those "
        "of one sequence resemble each other.",
        "direction",
        0.0,
        unit="vectors",
    ),
    Metric(
        "vmf_kappa",
        "concentration κ",
        "Concentration of the von Mises–Fisher law with this average cosine.",
        "direction",
        0.0,
        null=constant(0.0),
    ),
)


def _spectral(
    name: str, label: str, meaning: str, low: float | None, high: float | None = None, unit: str = ""
) -> Metric:
    reads = ("second moment",) if name == "rankme" else ("covariance",)
    of, expected = OF_EIGENVALUES[name], partial(null.spectral_null, name)
    return Metric(name, label, meaning, "spectrum", low, high, unit, of, reads, expected, paired=True)


_SPECTRUM = (
    _spectral(
        "isoscore",
        "IsoScore",
        "Evenness of the variance: 0 for one dimension in use, 1 for all equally; blind to drift.",
        0.0,
        1.0,
    ),
    _spectral(
        "participation_ratio",
        "participation ratio",
        "Number of dimensions that share the variance: (Σλ)²/Σλ².",
        1.0,
        unit="dimensions",
    ),
    _spectral(
        "effective_rank",
        "effective rank",
        "Exponential of the entropy of the covariance spectrum.",
        1.0,
        unit="dimensions",
    ),
    _spectral("stable_rank", "stable rank", "Total variance over the largest eigenvalue.", 1.0, unit="dimensions"),
    _spectral("pc1_share", "first component", "Share of the variance on the first principal component.", 0.0, 1.0),
    _spectral(
        "condition_number",
        "condition number",
        "Length of the longest axis over the shortest: the root of the largest eigenvalue over the smallest.",
        1.0,
    ),
    _spectral(
        "power_law_alpha",
        "power-law exponent",
        "Rate at which the eigenvalues decay with their rank, in log-log.",
        None,
    ),
    _spectral(
        "explained_k",
        "components for 90 %",
        "Fewest principal components that hold 90 % of the variance.",
        1.0,
        unit="dimensions",
    ),
    _spectral(
        "participation_ratio_unbiased",
        "participation, unbiased",
        "Participation ratio corrected for the sample size.",
        0.0,
        unit="dimensions",
    ),
    _spectral(
        "rankme",
        "RankMe",
        "Exponential of the entropy of the singular values, the mean not removed.",
        1.0,
        unit="dimensions",
    ),
    Metric(
        "outlier_dimensions",
        "outlier dimensions",
        "Number of dimensions whose variance is at least five times the average.",
        "spectrum",
        0.0,
        unit="dimensions",
        null=constant(0.0),
    ),
    Metric(
        "mean_dimensions",
        "dimensions of the mean",
        "Fewest dimensions that hold half of the squared norm of the mean.",
        "spectrum",
        1.0,
        unit="dimensions",
    ),
    Metric(
        "outlier_share",
        "variance in outliers",
        "Share of the variance that the outlier dimensions hold.",
        "spectrum",
        0.0,
        1.0,
        null=constant(0.0),
    ),
)


def pair_quantile(level: float, name: str) -> Metric:
    """The quantile of the cosine of single pairs; its null is the Beta law of one pair, not that of an average."""
    return Metric(
        name,
        f"{100 * level:g} % pair cosine" if level != 0.5 else "median pair cosine",
        f"Cosine that {100 * level:g} % of single pairs stay below, from a sample of vectors.",
        "neighbourhood",
        -1.0,
        1.0,
        null=lambda n, d: NullValue(float(null.cosine_quantile(level, d)), None, "exact: Beta law"),
    )


def _of_pair(value: Callable[[int], float]) -> Callable[[int, int], NullValue]:
    """The null of a statistic of single pairs, a function of d."""
    return lambda n, d: NullValue(float(value(d)), None, "exact: Beta law")


_sampled = partial(Metric, group="neighbourhood")
_NEIGHBOURHOOD = (
    pair_quantile(0.5, "cosine_q50"),
    pair_quantile(0.95, "cosine_q95"),
    *(
        _sampled(name, label, f"{meaning} cosine of single pairs.", low=0.0, high=1.0, null=_of_pair(expected))
        for name, label, meaning, expected in (
            ("cosine_sd", "sd of pair cosines", "Standard deviation of the", lambda d: d**-0.5),
            ("cosine_mean_absolute", "mean absolute cosine", "Average of the absolute", null.cosine_mean_absolute),
            ("cosine_mean_square", "mean squared cosine", "Average of the squared", null.cosine_mean_square),
        )
    ),
    _sampled(
        "equivalent_dimension",
        "equivalent dimension",
        "Dimension in which isotropic pairs would have the same mean squared cosine.",
        low=1.0,
        unit="dimensions",
        null=_of_pair(float),
    ),
    _sampled(
        "uniformity",
        "uniformity",
        "Logarithm of the mean Gaussian potential of pairs on the sphere; lower is more even.",
        high=0.0,
        null=partial(null.spectral_null, "uniformity"),
    ),
    *(
        Metric(
            f"mean_cosine_{name}",
            f"cosine, {label}",
            f"Average cosine after {what} removed.",
            "neighbourhood",
            -1.0,
            1.0,
            null=lambda n, d: NullValue(-1 / (n - 1), None, "exact"),
        )
        for name, label, what in (
            ("centred", "centred", "the mean is"),
            ("without_top", "top removed", "the mean and the top d/100 principal components are"),
        )
    ),
    *(
        _sampled(name, label, meaning, low=0.0, unit="dimensions", null=partial(null.neighbour_null, name))
        for name, label, meaning in (
            ("twonn", "intrinsic dim., TwoNN", "Intrinsic dimension from the ratios of the two nearest distances."),
            (
                "mle_dimension",
                "intrinsic dim., MLE",
                "Intrinsic dimension by maximum likelihood (Levina–Bickel) from 10 neighbours.",
            ),
        )
    ),
    _sampled(
        "hubness",
        "hubness",
        "Skewness of how often a vector is among the nearest neighbours of others.",
        null=partial(null.neighbour_null, "hubness"),
    ),
    _sampled(
        "bingham_p",
        "Bingham p",
        "p-value of the test that directions are uniform, against a preferred axis.",
        low=0.0,
        high=1.0,
        unit="p",
        null=constant(0.5),
    ),
)

_extreme = partial(Metric, group="activations", low=0.0)
_ACTIVATIONS = (
    _extreme("massive_activation", "largest activation", "Largest absolute coordinate of all vectors."),
    _extreme(
        "massive_activation_ratio",
        "largest over median",
        "Largest absolute coordinate over the median absolute coordinate.",
        null=extremes.largest_over_median,
    ),
    _extreme(
        "massive_dimensions",
        "massive dimensions",
        "Number of dimensions with an entry above 100 and above 1,000 times the median.",
        unit="dimensions",
        null=constant(0.0),
    ),
    _extreme("norm_growth", "norm growth", "Mean norm of a block's output over that of what entered it."),
)

_counted = partial(Metric, group="counts", low=0.0)
_COUNTS = (
    _counted("dimension", "dimension", "Number of entries of each vector."),
    _counted("sequences", "sequences", "Number of sequences, the units that are sampled independently."),
    _counted("zero_vectors", "zero vectors", "Zero vectors, which have no direction and are left out.", unit="vectors"),
    _counted(
        "nonfinite_vectors",
        "non-finite vectors",
        "Vectors with NaN or infinite entries, which are left out.",
        unit="vectors",
    ),
    Metric("verdict", "verdict", "What kind of anisotropy the numbers of the cloud show, in words.", "verdict"),
)

CLOUD = (*_DIRECTIONS, *_SPECTRUM, *_NEIGHBOURHOOD, *_ACTIVATIONS, *_COUNTS)
