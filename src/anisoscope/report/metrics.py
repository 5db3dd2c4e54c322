"""What each metric is called and means, in one line: for the terminal, the page and the docs.

Order and group are the order in which a person reads: where the cloud points, what shape it has, how its points lie.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """`group` for the table's sections, `label` for axes, `meaning` for hover texts and docs."""

    group: str
    label: str
    meaning: str


METRICS: dict[str, Meaning] = {
    "mean_cosine": Meaning("direction", "average cosine", "over all pairs of different vectors"),
    "mean_cosine_inter": Meaning("direction", "cosine between sequences", "over pairs from different sequences"),
    "mean_cosine_intra": Meaning("direction", "cosine within sequences", "over pairs from the same sequence"),
    "resultant": Meaning("direction", "resultant length", "norm of the mean unit vector"),
    "drift_norm": Meaning("direction", "drift norm", "norm of the mean vector"),
    "drift_ratio": Meaning("direction", "drift ratio", "squared norm of the mean over mean squared norm"),
    "mean_norm": Meaning("direction", "mean norm", "average norm of the vectors"),
    "norm_cv": Meaning("direction", "norm variation", "standard deviation over mean of the norms"),
    "vmf_kappa": Meaning("direction", "concentration κ", "von Mises–Fisher concentration for this average cosine"),
    "rayleigh_p": Meaning("direction", "Rayleigh p", "p-value: uniform on the sphere, against a common direction"),
    "effective_n": Meaning("direction", "effective n", "independent directions, allowing for sequences"),
    "isoscore": Meaning("spectrum", "IsoScore", "0: one dimension in use, 1: all equally; blind to drift"),
    "participation_ratio": Meaning("spectrum", "participation ratio", "(Σλ)²/Σλ²: dimensions in use"),
    "participation_ratio_unbiased": Meaning("spectrum", "participation, unbiased", "corrected for the sample size"),
    "effective_rank": Meaning("spectrum", "effective rank", "exponential of the spectrum's entropy"),
    "rankme": Meaning("spectrum", "RankMe", "exponential entropy of the uncentred singular values"),
    "stable_rank": Meaning("spectrum", "stable rank", "total variance over the largest eigenvalue"),
    "pc1_share": Meaning("spectrum", "first component", "share of variance on the first principal component"),
    "explained_k": Meaning("spectrum", "components for 90 %", "principal components that hold 90 % of the variance"),
    "power_law_alpha": Meaning("spectrum", "power-law exponent", "decay of the eigenvalues in log-log"),
    "condition_number": Meaning("spectrum", "condition number", "√(largest over smallest eigenvalue)"),
    "outlier_dimensions": Meaning("spectrum", "outlier dimensions", "variance at least 5 times the average"),
    "mean_dimensions": Meaning("spectrum", "dimensions of the mean", "fewest dimensions that hold half of ‖x̄‖²"),
    "cosine_q50": Meaning("neighbourhood", "median pair cosine", "of a sample of pairs"),
    "cosine_q95": Meaning("neighbourhood", "95 % pair cosine", "of a sample of pairs"),
    "cosine_sd": Meaning("neighbourhood", "sd of pair cosines", "1/√d if isotropic"),
    "equivalent_dimension": Meaning("neighbourhood", "equivalent dimension", "d whose isotropic cosines spread so"),
    "uniformity": Meaning("neighbourhood", "uniformity", "log mean Gaussian potential; lower is more even"),
    "mean_cosine_centred": Meaning("neighbourhood", "cosine, centred", "average cosine after removing the mean"),
    "mean_cosine_without_top": Meaning("neighbourhood", "cosine, top removed", "and after d/100 top components too"),
    "twonn": Meaning("neighbourhood", "intrinsic dim., TwoNN", "from ratios of two nearest distances"),
    "mle_dimension": Meaning("neighbourhood", "intrinsic dim., MLE", "Levina–Bickel, 10 neighbours"),
    "hubness": Meaning("neighbourhood", "hubness", "skewness of how often a vector is a neighbour"),
    "bingham_p": Meaning("neighbourhood", "Bingham p", "p-value: uniform on the sphere, against a preferred axis"),
    "zero_vectors": Meaning("counts", "zero vectors", "left out"),
    "nonfinite_vectors": Meaning("counts", "non-finite vectors", "left out"),
    "sequences": Meaning("counts", "sequences", "units sampled independently"),
}  # fmt: skip
GROUPS = ("direction", "spectrum", "neighbourhood", "counts")
