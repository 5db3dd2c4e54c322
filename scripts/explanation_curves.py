"""Pictures of docs/explanation that are curves: sample size, spectra, I(W), neighbours, sampled pairs, coverage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.moments import Moments
from anisoscope.geometry import cosine, spectrum
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.partition import partition, partition_reference
from anisoscope.geometry.rows import unit_rows
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.report.figures.style import FAINT, INK, NULL, PALETTE, WIDE, style, subplots
from anisoscope.studies.demo import count_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
BLUE, RED, GREEN, PINK, ORANGE = PALETTE[:5]


def _axes(panels: int, *, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    figure, axes = subplots(1, panels, size=(WIDE, height), squeeze=False)
    return figure, list(axes[0])


# -- few vectors -------------------------------------------------------------------------------------------------------


def figure_few_vectors() -> Figure:
    """IsoScore and the unbiased participation ratio of isotropic clouds in R^64, as the cloud grows."""
    d, draws = 64, 12
    sizes = [2**k for k in range(4, 14)]
    rng = np.random.default_rng(0)
    raw, unbiased = [], []
    for n in sizes:
        values = np.stack([spectrum.eigenvalues_from_rows(rng.standard_normal((n, d))) for _ in range(draws)])
        raw.append(spectrum.isoscore(values))
        unbiased.append(spectrum.participation_ratio_unbiased(values.sum(-1), np.square(values).sum(-1), n) / d)
    expected = np.array([null.spectral_null("isoscore", n, d).value for n in sizes], dtype=float)
    with style():
        figure, (axes,) = _axes(1)
        axes.axvspan(sizes[0], 10 * d, color="#F3F3F3", zorder=0)
        axes.axhline(1, color=NULL, linestyle=":", linewidth=1)
        axes.plot(sizes, expected, color=NULL, linewidth=1, label="null of IsoScore at this n")
        for name, values, shade in (("IsoScore", raw, RED), ("participation ratio, unbiased, over d", unbiased, GREEN)):
            x = np.repeat(sizes, draws) * np.tile(np.linspace(0.94, 1.06, draws), len(sizes))
            axes.plot(x, np.concatenate(values), "o", color=shade, markersize=2, label=f"{name}, {draws} draws")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        top = 1.08 * float(np.max(unbiased))
        axes.set_ylim(0, top)
        axes.text(10 * d * 0.93, 0.98 * top, "n < 10·d", ha="right", va="top", fontsize=7, color=FAINT)
        axes.set_xlabel("vectors n")
        axes.set_title(f"Isotropic clouds in {d} dimensions, seen through few vectors")
        axes.legend(loc="lower right")
    return figure


# -- spectra -----------------------------------------------------------------------------------------------------------


def figure_spectra() -> Figure:
    """Three spectra that fool the exponent, the 90 % rule and the condition number."""
    d = 128
    heads, dead = np.ones(d), np.ones(d)
    heads[:10] = 300.0
    dead[-1] = 1e-6
    single = np.ones(d)
    single[0] = d - 1.0
    panels = (
        ("Ten directions hold it all", heads, "power-law exponent", spectrum.power_law_alpha(heads)),
        ("One direction holds half", single, "components for 90 %", spectrum.explained_k(single)),
        ("One dead dimension", dead, "condition number", spectrum.condition_number(dead)),
    )
    isotropic = ("0 if flat", f"{spectrum.explained_k(np.ones(d)):.0f} if flat", "1 if flat")
    with style():
        figure, axes = _axes(3, height=2.3)
        for panel, (title, values, name, value), flat in zip(axes, panels, isotropic, strict=True):
            panel.loglog(np.arange(1, d + 1), values, "o", color=BLUE, markersize=2)
            if name == "power-law exponent":
                panel.axvspan(11, 100, color="#F3F3F3", zorder=0)
                panel.text(33, 6, "fitted: 11 to 100", ha="center", va="top", fontsize=6, color=FAINT)
            ratio = spectrum.participation_ratio(values)
            said = (
                (f"fooled: {name}", RED),
                (f"{value:,.0f}  ({flat})", RED),
                ("not fooled: participation ratio", GREEN),
            )
            for line, (text, shade) in enumerate((*said, (f"{ratio:.1f} of {d}", GREEN))):
                panel.text(0.05, 0.36 - 0.1 * line, text, transform=panel.transAxes, fontsize=6.8, color=shade)
            panel.set_title(title)
            panel.set_xlabel("rank")
            panel.set_ylim(values.min() * (values.min() / values.max()) ** 1.2 / 30, values.max() * 3)
        axes[0].set_ylabel("eigenvalue")
    return figure


# -- the partition function --------------------------------------------------------------------------------------------


def figure_partition() -> Figure:
    """I(W) against the scale of W, and against the signs of the eigenvectors."""
    rng, rows, d = np.random.default_rng(0), 2000, 64
    isotropic = rng.standard_normal((rows, d)) / d**0.5  # norms about 1
    drifted = isotropic + np.eye(d)[0]  # average cosine about ½
    scales = np.geomspace(0.01, 10, 13)
    with style():
        figure, (left, right) = _axes(2)
        for name, w, shade in (("isotropic", isotropic, BLUE), ("drifted", drifted, RED)):
            units = unit_rows(w)
            average = cosine.mean_cosine(units.sum(0), rows)
            values = [partition(s * w, convention="both").value for s in scales]
            left.loglog(scales, values, "o-", color=shade, label=f"{name}: average cosine {abs(average):.2f}")
        reference = [partition_reference(s * drifted, convention="both").value for s in scales]
        left.loglog(scales, reference, ":", color=NULL, label="random directions, norms of the drifted")
        left.set_xlabel("factor on the same vectors (their norms are about 1)")
        left.set_ylabel("I(W), both signs")
        left.set_title("It follows the scale")
        left.legend(loc="lower left")
        _signs(right)
    return figure


def _signs(axes: Axes) -> None:
    """The one-sided I(W) of one matrix, whose mean lies across several eigenvectors, for random signs of these."""
    rng, rows, d = np.random.default_rng(1), 2000, 64
    w = rng.standard_normal((rows, d)) / d**0.5
    w[:, :6] = w[:, :6] * d**0.5 * np.linspace(1.0, 0.5, 6) + np.linspace(0.8, 0.4, 6)
    vectors = np.linalg.eigh(w.T @ w)[1]
    signs = rng.choice([-1.0, 1.0], size=(400, d))
    values = np.array([partition(w, directions=vectors * sign).value or 0.0 for sign in signs])
    both = partition(w, convention="both").value or 0.0
    axes.hist(values, bins=np.linspace(0, 1.1 * values.max(), 50), color=BLUE)
    axes.axvline(both, color=GREEN)
    axes.text(both * 1.05, axes.get_ylim()[1], f"both signs: {both:.3f}", color=GREEN, fontsize=7, va="top")
    axes.set_xlabel(f"I(W), one-sided: from {values.min():.3f} to {values.max():.3f}")
    axes.set_ylabel("of 400 choices of signs")
    axes.set_title("It follows the signs of the eigenvectors")


# -- neighbours --------------------------------------------------------------------------------------------------------


def figure_neighbours() -> Figure:
    """Intrinsic dimension and hubness of isotropic clouds, as d grows."""
    m, dimensions = 2000, [2, 4, 8, 16, 32, 64, 128, 256, 512]
    found = {
        name: [null.neighbour_null(name, m, d).value for d in dimensions]
        for name in ("twonn", "mle_dimension", "hubness")
    }
    with style():
        figure, (left, right) = _axes(2)
        left.loglog(dimensions, dimensions, ":", color=NULL)
        left.text(dimensions[-3], dimensions[-3] * 1.15, "true dimension ", ha="right", fontsize=7, color=NULL)
        for name, shade, label in (("twonn", BLUE, "TwoNN"), ("mle_dimension", ORANGE, "maximum likelihood")):
            left.loglog(dimensions, found[name], "o-", color=shade, label=label)
        left.set_xlabel("dimension d of an isotropic cloud")
        left.set_ylabel("intrinsic dimension read off")
        left.set_title(f"{m:,} vectors cannot fill {dimensions[-1]} dimensions")
        left.legend(loc="upper left")
        right.semilogx(dimensions, found["hubness"], "o-", color=PINK)
        right.axhline(0, color=NULL, linestyle=":", linewidth=1)
        right.set_xlabel("dimension d of an isotropic cloud")
        right.set_ylabel("hubness")
        right.set_title("Hubs without any structure")
        for axes in (left, right):
            axes.set_xticks(dimensions, [str(d) for d in dimensions])
            axes.minorticks_off()
    return figure


# -- why exact ---------------------------------------------------------------------------------------------------------


def text_cloud(rng: np.random.Generator, texts: int, length: int, d: int) -> tuple[Array, NDArray[np.uint64]]:
    """Drifted vectors that share something with their text: x = μ + a_text + e, ‖μ‖ = √d, sds ½ and 1."""
    which = np.repeat(np.arange(texts), length)
    shared = 0.5 * rng.standard_normal((texts, d))[which]
    x = shared + rng.standard_normal((texts * length, d))
    x[:, 0] += d**0.5
    return x, which.astype(np.uint64)


def figure_exact() -> Figure:
    """What sampling pairs costs: the spread about the exact value, and the error for the same vectors read."""
    with style():
        figure, (left, right) = _axes(2, height=2.7)
        _sampled_pairs(left)
        _same_reading(right)
    return figure


def _sampled_pairs(axes: Axes) -> None:
    """The word vectors of the demo: 400 times 1,000 and 10,000 of their pairs, beside all of them."""
    vectors = count_vectors()[1]
    units = unit_rows(vectors[vectors.any(axis=1)])
    n = len(units)
    exact = cosine.mean_cosine(units.sum(0), n)
    rng, drawn = np.random.default_rng(1), {}
    for pairs in (1000, 10_000):
        left = rng.integers(0, n, (400, pairs))
        right = (left + rng.integers(1, n, left.shape)) % n
        drawn[pairs] = np.array(
            [np.einsum("ij,ij->i", units[i], units[j]).mean() for i, j in zip(left, right, strict=True)]
        )
    bins = np.linspace(drawn[1000].min(), drawn[1000].max(), 41)
    for (pairs, found), shade in zip(drawn.items(), (RED, ORANGE), strict=True):
        axes.hist(found, bins=bins, color=shade, alpha=0.75, label=f"{pairs:,} pairs: sd {found.std():.4f}")
    top = axes.get_ylim()[1]
    axes.plot([exact, exact], [0, top], color=INK, linewidth=1.4, label=f"all {n * (n - 1) // 2:,} pairs: {exact:.4f}")
    axes.set_ylim(0, 1.45 * top)
    axes.set_xlabel("average cosine of one and the same file")
    axes.set_ylabel("of 400 drawings of pairs")
    axes.set_title(f"{n:,} word vectors: which pairs were drawn?")
    axes.legend(loc="upper left")


def _same_reading(axes: Axes) -> None:
    """Root mean square error against the truth: n/2 disjoint pairs of n vectors, or all n(n−1)/2."""
    sizes, draws, d = [64, 128, 256, 512, 1024, 2048], 200, 128
    rng = np.random.default_rng(2)
    for name, shift, shade in (("isotropic", 0.0, BLUE), ("drifted", d**0.5, RED)):
        truth = true_mean_cosine(shift, d)
        half, every = [], []
        for n in sizes:
            errors = np.empty((draws, 2))
            for draw in range(draws):
                x = rng.standard_normal((n, d))
                x[:, 0] += shift
                units = unit_rows(x)
                errors[draw] = (
                    np.einsum("ij,ij->i", units[0::2], units[1::2]).mean(),
                    cosine.mean_cosine(units.sum(0), n),
                )
            error = np.sqrt(np.square(errors - truth).mean(0))
            half.append(error[0])
            every.append(error[1])
        axes.loglog(sizes, half, "o--", color=shade, label=f"{name}: n/2 sampled pairs")
        axes.loglog(sizes, every, "o-", color=shade, label=f"{name}: all pairs, by sums")
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel("vectors read, n")
    axes.set_ylabel("rms error of the average cosine")
    axes.set_title("The same vectors read, two answers")
    axes.legend(loc="lower left", fontsize=6.5, handlelength=3.2)


def true_mean_cosine(shift: float, d: int, *, spread: float = 1.0) -> float:
    """‖E u‖² of x ~ N(μ, spread²·I), ‖μ‖ = shift, by Kummer's function."""
    from scipy.special import gammaln, hyp1f1

    r = shift / spread
    scale = r * np.exp(gammaln((d + 1) / 2) - gammaln(d / 2 + 1)) / 2**0.5
    return float(scale * hyp1f1(0.5, d / 2 + 1, -r * r / 2)) ** 2


# -- why clustered intervals -------------------------------------------------------------------------------------------


def figure_clustered() -> Figure:
    """Intervals of 40 corpora, and how often 95 % intervals hold the truth as texts get longer."""
    with style():
        figure, (left, right) = _axes(2, height=2.9)
        _caterpillar(left)
        _coverage(right)
    return figure


def interval(x: Array, keys: NDArray[np.uint64] | None) -> tuple[float, float, float]:
    """Average cosine between sequences with its jackknife interval; without keys every vector is a sequence."""
    moments = Moments(x.shape[1], spectrum=False, reservoir=0)
    moments.update(torch.from_numpy(x), sequences=keys, whole=True)
    sums = moments.sums()
    groups = (sums.group_unit, sums.group_n, sums.group_energy, sums.group_pairs)
    value, low, high = jackknife_of(cosine.mean_cosine_inter, *groups, sizes=sums.group_n)
    if value is None or low is None or high is None:
        raise ValueError("too few texts for an interval")
    return value, low, high


TEXTS, DIMENSION = 100, 16
TRUTH = true_mean_cosine(DIMENSION**0.5, DIMENSION, spread=1.25**0.5)  # sds ½ and 1 add up to √1.25


def corpus(rng: np.random.Generator, length: int) -> tuple[Array, NDArray[np.uint64]]:
    """A hundred texts of so many tokens, with keys of their own."""
    x, which = text_cloud(rng, TEXTS, length, DIMENSION)
    return x, rng.integers(0, 2**63, TEXTS).astype(np.uint64)[which.astype(int)]


def _caterpillar(axes: Axes) -> None:
    rng, corpora = np.random.default_rng(3), 30
    for row in range(corpora):
        x, keys = corpus(rng, 50)
        for shift, chosen, shade in ((0.18, None, RED), (-0.18, keys, BLUE)):
            value, low, high = interval(x, chosen)
            held = low <= TRUTH <= high
            axes.plot([low, high], [row + shift] * 2, color=shade, linewidth=1.1, alpha=1.0 if held else 0.4)
            axes.plot(value, row + shift, "o", color=shade, markersize=1.6)
    axes.plot([TRUTH, TRUTH], [-1, corpora], color=INK, linewidth=1)
    axes.plot([], [], color=RED, label="tokens taken for independent")
    axes.plot([], [], color=BLUE, label="texts left out in groups")
    axes.set_ylim(-1, corpora * 1.28)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("average cosine (line: the truth; pale: missed it)")
    axes.set_title(f"{corpora} corpora of {TEXTS} texts of 50 tokens")
    axes.legend(loc="upper left")


def _coverage(axes: Axes) -> None:
    rng, lengths, draws = np.random.default_rng(4), [1, 2, 5, 10, 20, 50], 400
    held = np.zeros((len(lengths), 2))
    for i, length in enumerate(lengths):
        for _ in range(draws):
            x, keys = corpus(rng, length)
            for j, chosen in enumerate((None, keys)):
                _, low, high = interval(x, chosen)
                held[i, j] += low <= TRUTH <= high
    share = 100 * held / draws
    axes.axhline(95, color=NULL, linestyle=":", linewidth=1)
    axes.axhspan(92, 98, color="#F0F0F0", zorder=0)
    for j, (name, shade) in enumerate((("tokens taken for independent", RED), ("texts left out in groups", BLUE))):
        axes.plot(lengths, share[:, j], "o-", color=shade, label=name)
        axes.annotate(
            f"{share[-1, j]:.0f} %",
            (lengths[-1], share[-1, j]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=shade,
            annotation_clip=False,
        )
    axes.set_xscale("log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.set_ylim(0, 103)
    axes.set_xlabel("tokens per text")
    axes.set_ylabel("95 % intervals that hold the truth (%)")
    axes.set_title(f"Coverage, {draws} corpora each")
    axes.legend(loc="lower left")


CURVES: dict[str, Callable[[], Figure]] = {
    "few-vectors": figure_few_vectors,
    "spectra": figure_spectra,
    "partition": figure_partition,
    "neighbours": figure_neighbours,
    "exact": figure_exact,
    "clustered": figure_clustered,
}
