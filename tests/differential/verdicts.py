"""What a run says of a cloud, held against the reference: a list of what does not agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaincc, ive

from differential.reference import ANY, directions, neighbourhoods, spectrum

Rows = Iterable[Mapping[str, Any]]
_LOOSE = {"rankme": 300.0, "effective_rank": 10.0, "twonn": 50.0, "mle_dimension": 50.0, "hubness": 1e-3}


class Cloud(NamedTuple):
    """Vectors that can be measured, the sequence of each, and the relative precision of what was summed and sampled."""

    x: Any  # (n, d) float64
    groups: Any  # (n,)
    unit: float  # of the products: 2⁻²⁴ or 2⁻⁵³
    sampled: float = 2.0**-24  # of the vectors that were kept whole
    squares: bool = True  # whether float64 can hold squares
    fourths: bool = True  # … and fourth powers
    spectra: bool = True
    neighbours: bool = True


def problems(rows: Rows, cloud: Cloud) -> list[str]:
    """Every row of one cloud that is not what the reference says, and every metric that has no row."""
    found, said = {}, []
    for row in rows:
        if row["at"] is None:
            found[row["metric"]] = row
        said += _ordered(row)
    x, groups = cloud.x, cloud.groups
    scaled = x / np.abs(x).max()  # ratios do not change, and squares can be held
    wanted = directions(scaled, groups)
    for name in ("mean_norm", "drift_norm"):
        wanted[name] *= np.abs(x).max()
    said += _tests(found, scaled, groups, wanted)
    said += _shares(rows, wanted.pop("contributions"))
    said += _kappa(found, wanted.pop("vmf_resultant"), x.shape[1])
    near = {"norm_cv": 1e-7, "drift_norm": 1e-11 * wanted["mean_norm"]}
    for name, value in wanted.items():
        missing = not (cloud.fourths if name == "kurtosis" else cloud.squares or name not in ("norm_cv", "drift_ratio"))
        said += _one(found, name, None if missing else value, 1e-9, near.get(name, 1e-11))
    if cloud.spectra and cloud.squares and x.shape[1] > 1:
        said += _spectral(found, scaled, cloud.unit)
    if cloud.neighbours and cloud.squares and len(x) >= 32:
        said += _sampled(found, scaled, cloud.sampled)
    return said


def _one(found: Mapping[str, Any], name: str, value: Any, relative: float, absolute: float) -> list[str]:
    if value is ANY:
        return []
    if name not in found:
        return [f"{name}: no row"]
    got = found[name]["value"]
    if value is None or got is None:
        return [] if value is None and got is None else [f"{name}: {got} instead of {value}"]
    if abs(got - value) <= relative * abs(value) + absolute:
        return []
    return [f"{name}: {got!r} instead of {float(value)!r}"]


def _ordered(row: Mapping[str, Any]) -> list[str]:
    value, low, high = row["value"], row["low"], row["high"]
    numbers = [number for number in (value, low, high, row["null"]) if number is not None]
    if not all(np.isfinite(numbers)):
        return [f"{row['metric']}: not finite: {numbers}"]
    if low is None or high is None or value is None:
        return []
    slack = 1e-9 * max(abs(low), abs(high), abs(value))
    return [] if low - slack <= value <= high + slack else [f"{row['metric']}: {value} outside [{low}, {high}]"]


def _spectral(found: Mapping[str, Any], x: Any, unit: float) -> list[str]:
    drift = float((x**2).sum() / max(((x - x.mean(0)) ** 2).sum(), 1e-300))
    noise = 300 * unit + 1e-13 * drift * x.shape[1]
    if noise > 1e-3:
        return []  # the mean is so far away that nothing is left to compare
    wanted = spectrum(x, unit=unit)
    shares = wanted.pop("spectrum", None)
    said = []
    for name, value in wanted.items():
        loose = _LOOSE.get(name, 3.0) * noise
        if name == "rankme" and shares is not None:
            loose += 3 * len(shares) * noise**0.5 * (shares.min() < 10 * noise)
        said += _one(found, name, value, loose, noise if name == "isoscore" else 0.0)
    return said if shares is None else said + _small(found, shares, noise)


def _small(found: Mapping[str, Any], shares: Any, noise: float) -> list[str]:
    """What depends on the smallest eigenvalues: missing where they are rounding, else right."""
    condition, smallest = found["condition_number"]["value"], shares.min() / shares.max()
    said = []
    if condition is None and smallest > 100 * noise:
        said.append(f"condition_number: missing, but the smallest share is {smallest}")
    if condition is not None and abs(condition**-2 - smallest) > noise:
        said.append(f"condition_number: {condition} instead of {smallest**-0.5}")
    fitted = shares[10:100]
    alpha = found["power_law_alpha"]["value"]
    if (fitted > 100 * noise * shares.max()).sum() >= 10 and fitted.min() > 100 * noise * shares.max():
        ranks = np.arange(11, 11 + len(fitted))
        slope = -np.polyfit(np.log(ranks), np.log(fitted), 1, w=ranks**-0.5)[0]
        said += _one(found, "power_law_alpha", slope, 0.1, 0.05)
    elif (fitted > 1e-4 * noise * shares.max()).sum() < 10 and alpha is not None:
        said.append(f"power_law_alpha: {alpha} from less than ten eigenvalues")
    return said


def _sampled(found: Mapping[str, Any], x: Any, unit: float) -> list[str]:
    """Compared with the vectors as they were kept; what neighbours at almost no distance say is left open."""
    kept = x.astype(np.float32).astype(float) if unit > 1e-10 else x
    apart = np.linalg.norm(kept - kept.mean(0), axis=1).mean()
    noise = 100 * unit * np.linalg.norm(kept, axis=1).mean() / max(apart, 1e-300)
    if noise > 1e-3:
        return []
    said = []
    for name, value in neighbourhoods(kept).items():
        said += _one(found, name, value, _LOOSE.get(name, 10.0) * noise + 1e-9, 10 * noise)
    return said


def _shares(rows: Rows, contributions: Any) -> list[str]:
    listed = [(int(row["at"]), row["value"]) for row in rows if row["metric"] == "cosine_share"]
    if contributions is None or not listed:
        return [f"cosine_share: {share} instead of missing" for _, share in listed if share is not None]
    best = np.sort(contributions)[::-1]
    if np.abs(contributions).max() > 1e6:
        return []
    wrong = [at for at, share in listed if share is None or abs(share - contributions[at]) > 1e-7]
    wrong += [at for place, (at, _) in enumerate(listed) if abs(contributions[at] - best[place]) > 1e-7]
    return [f"cosine_share of dimension {at} is wrong" for at in wrong]


def _kappa(found: Mapping[str, Any], resultant: Any, d: int) -> list[str]:
    if resultant is ANY or d < 2:
        return []
    kappa = found["vmf_kappa"]["value"]
    if kappa is None or kappa > 1e4:
        return [] if resultant > 0.99 else [f"vmf_kappa: {kappa} at a resultant of {resultant}"]
    back = ive(d / 2, kappa) / ive(d / 2 - 1, kappa) if kappa > 1e-3 else kappa / d
    return [] if abs(back - resultant) < 1e-6 else [f"vmf_kappa: {kappa} has resultant {back}, not {resultant}"]


def _tests(found: Mapping[str, Any], x: Any, groups: Any, wanted: Mapping[str, Any]) -> list[str]:
    """Rayleigh and Bingham: the statistic as the note tells it, and the tail of the Gamma law of three moments."""
    d = x.shape[1]
    units = x / np.linalg.norm(x, axis=1)[:, None]
    size = wanted["effective_n"]
    statistics = {"rayleigh_p": (d * size * wanted["resultant"] ** 2, float(d), size, 0.0)}
    if "bingham_p" in found and d > 1:
        statistics["bingham_p"] = _bingham(units.astype(np.float32).astype(float), groups)
    said = []
    for name, (statistic, degrees, effective, third) in statistics.items():
        row = found[name]
        if effective < 2 - 1e-9:
            said += [] if row["value"] is None else [f"{name}: {row['value']} at n_eff = {effective}"]
        elif effective > 2 + 1e-6 and row["value"] is not None:
            told = float(re.match(r"[TB] = ([-+.\de]+)", row["note"])[1])  # pyright: ignore[reportOptionalSubscript]
            p = _tail(statistic, degrees, effective, third)
            if abs(told - statistic) > 2e-3 * abs(statistic) + 1e-3 * degrees or abs(p - row["value"]) > 1e-3:
                said.append(f"{name}: {row['value']} ({row['note']}) instead of {p} ({statistic})")
        elif effective > 2 + 1e-6:
            said.append(f"{name}: missing at n_eff = {effective}")
    return said


def _bingham(units: Any, groups: Any) -> tuple[float, float, float, float]:
    m, d = units.shape
    squares = (units @ units.T) ** 2
    energy = (squares - 1 / d)[groups[:, None] == groups[None, :]].sum()
    size = min(m * m * (1 - 1 / d) / energy, m) if energy > 0 else m
    e4, e6 = 3 / (d * (d + 2)), 15 / (d * (d + 2) * (d + 4))
    third = (e6 - 3 * e4 / d + 2 / d**3) / (1 - 1 / d) ** 3
    return d * (d + 2) / 2 * size * (squares.sum() / m**2 - 1 / d), (d - 1) * (d + 2) / 2, size, third


def _tail(statistic: float, degrees: float, n: float, third: float) -> float:
    variance = 2 * (n - 1) / (n * degrees)
    skew = 4 * (n - 1) * third / n**2 + 8 * (n - 1) * max(n - 2, 1e-3) / (n * degrees) ** 2
    shape, scale = 4 * variance**3 / skew**2, skew / (2 * variance)
    return float(gammaincc(shape, max(shape + (statistic / degrees - 1) / scale, 0.0)))
