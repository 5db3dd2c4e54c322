"""Every metric of a cloud once more, straight from its definition: float64, numpy, all pairs written out.

`truth(x, groups)` shares no code with the package. A value that the definition does not determine (a tie, a number on
the edge between two whole numbers, a ratio of rounding errors) is `ANY`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ANY = object()
Array = Any


def directions(x: Array, groups: Array) -> dict[str, Any]:
    """Cosines, norms, drift, and who carries them."""
    n, d = x.shape
    norms = np.linalg.norm(x, axis=1)
    units = x / norms[:, None]
    cosines, other = units @ units.T, ~np.eye(n, dtype=bool)
    same = groups[:, None] == groups[None, :]
    mean, energy = x.mean(0), cosines[same].sum()
    between, within = cosines[~same], cosines[same & other]
    contributions = (units.sum(0) ** 2 - (units**2).sum(0)) / (n * (n - 1))
    total, spread = contributions.sum(), np.abs(contributions).sum()
    average = cosines[other].mean()
    return {
        "mean_cosine": average,
        "mean_cosine_inter": between.mean() if len(between) else None,
        "mean_cosine_intra": within.mean() if len(within) else None,
        "resultant": np.linalg.norm(units.mean(0)),
        "mean_norm": norms.mean(),
        "norm_cv": norms.std(ddof=1) / norms.mean(),
        "drift_norm": np.linalg.norm(mean),
        "drift_ratio": (mean @ mean) / (norms**2).mean(),
        "contributions": contributions / total if total > 0.5 * spread else None,
        "effective_n": min(n, n * n / energy) if energy > 0 else n,
        "vmf_resultant": ANY if average > 1 - 1e-9 else max(average, 0.0) ** 0.5,
        "kurtosis": (x**4).mean() / (x**2).mean() ** 2,
        "dimension": d,
        "sequences": len(set(groups.tolist())),
    }


def spectrum(x: Array, *, unit: float) -> dict[str, Any]:
    """What shape the cloud has, from singular values, which no product of vectors has gone into."""
    n, d = x.shape
    values = np.zeros(d)
    found = np.linalg.svd(x - x.mean(0), compute_uv=False)[:d]
    values[: len(found)] = found**2 / (n - 1)
    raw = np.linalg.svd(x, compute_uv=False)
    if values.sum() <= unit * 1e3 * (x**2).sum() / n:
        return dict.fromkeys(("isoscore", "effective_rank", "pc1_share", "condition_number"), ANY)
    shares = values / values.sum()
    positive = shares[shares > 0]
    ratio = 1 / (shares**2).sum()
    sigma = raw / raw.sum() + 1e-7
    trace, square, nu = values.sum(), (values**2).sum(), n - 1
    below = square - trace**2 / nu
    held, variances = np.cumsum(shares), x.var(0, ddof=1)
    near = np.abs(held - 0.9).min() < 1e-6
    outlying = variances / variances.mean() - 5
    return {
        "isoscore": (ratio - 1) / (d - 1),
        "participation_ratio": ratio,
        "effective_rank": np.exp(-(positive * np.log(positive)).sum()),
        "stable_rank": 1 / shares.max(),
        "pc1_share": shares.max(),
        "explained_k": ANY if near else int((held < 0.9).sum()) + 1,
        "participation_ratio_unbiased": _unbiased(trace, square, below, nu) if n >= 3 else None,
        "rankme": np.exp(-(sigma * np.log(sigma)).sum()),
        "outlier_dimensions": ANY if np.abs(outlying).min() < 1e-5 else int((outlying >= 0).sum()),
        "mean_dimensions": _half_of(x.mean(0) ** 2),
        "spectrum": shares,
    }


def _unbiased(trace: float, square: float, below: float, nu: int) -> Any:
    if below < 1e-5 * square:
        return ANY
    return (nu + 1) / nu * (trace**2 - 2 * square / (nu + 1)) / below


def _half_of(squares: Array) -> Any:
    held = np.cumsum(np.sort(squares)[::-1]) / squares.sum() if squares.sum() > 0 else np.zeros(0)
    if not len(held):
        return 0
    return ANY if np.abs(held - 0.5).min() < 1e-6 else int((held < 0.5).sum()) + 1


def neighbourhoods(x: Array) -> dict[str, Any]:
    """What needs whole vectors: quantiles of pair cosines, nearest neighbours, what centring leaves."""
    units = x / np.linalg.norm(x, axis=1)[:, None]
    pairs = (units @ units.T)[np.triu_indices(len(x), 1)]
    squared = (pairs**2).mean()
    levels = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    found = {f"cosine_q{round(100 * q):02d}": np.quantile(pairs, q) for q in levels}
    return {
        **found,
        "cosine_sd": pairs.std(),
        "cosine_mean_square": squared,
        "equivalent_dimension": 1 / squared,
        "uniformity": np.log(np.exp(4 * (pairs - 1)).mean()),
        **_removals(x),
        **_nearest(x),
    }


def _removals(x: Array) -> dict[str, Any]:
    n, d = x.shape
    centred, top = x - x.mean(0), max(1, round(d / 100))
    _, sigma, axes = np.linalg.svd(centred, full_matrices=False)
    rest = centred - centred @ axes[:top].T @ axes[:top]
    gap = sigma[top - 1] - sigma[top] > 1e-4 * sigma[0] if top < len(sigma) else True
    left = {"mean_cosine_centred": centred}
    if top < min(n - 1, d):
        left["mean_cosine_without_top"] = rest
    scale = np.sqrt((x**2).sum(1).mean())
    return {
        name: ANY if np.linalg.norm(rows, axis=1).min() < 1e-3 * scale or not gap else _average(rows)
        for name, rows in left.items()
    }


def _average(rows: Array) -> float:
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    return float((units @ units.T)[~np.eye(len(rows), dtype=bool)].mean())


def _nearest(x: Array) -> dict[str, Any]:
    """TwoNN, maximum likelihood and hubness, with all distances written out."""
    n, k = len(x), min(10, len(x) - 1)
    distances = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")
    near = np.take_along_axis(distances, order, axis=1)[:, : k + 1]
    apart = near[:, 0] > 0
    apart &= near[:, 0] > 1e-4 * np.median(near[apart, 0]) if apart.any() else apart
    usable = near[apart][:, :k]
    tied = (near[:, k] - near[:, k - 1] < 1e-5 * near[:, k]).any() if near.shape[1] > k else False
    ratios = np.sort(np.log(usable[:, 1] / usable[:, 0])) if len(usable) else np.zeros(0)
    kept = int(len(ratios) * 0.9)
    y = -np.log(1 - np.arange(1, kept + 1) / max(len(ratios), 1))
    square = (ratios[:kept] ** 2).sum()
    inverse = np.log(usable[:, -1:] / usable[:, :-1]).mean() if len(usable) else 0.0
    counts = np.bincount(order[:, :k].ravel(), minlength=n).astype(float)
    skew = ((counts - counts.mean()) ** 3).mean() / counts.var() ** 1.5 if counts.var() > 0 else None
    return {
        "twonn": (ratios[:kept] @ y) / square if kept >= 2 and square > 1e-8 else ANY,
        "mle_dimension": 1 / inverse if inverse > 1e-6 else ANY,
        "hubness": ANY if tied else skew,
    }
