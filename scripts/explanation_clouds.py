"""Clouds that fool a metric: how each is made, which metrics it fools and which see through it.

The pictures of docs/explanation/clouds.md are drawn from these by `explanation_figures`, and a test holds each of them
to its claim: a metric that is `fooled` must say what it says here, one that `sees` must not.

All clouds are seeded. Gaussian vectors of R^d have norms close to √d, so a shift of √d gives an average cosine of ½.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.moments import Moments
from anisoscope.inference.cloud import measure_cloud

Array = NDArray[np.float64]
VECTORS = 4000


@dataclass(frozen=True)
class Reading:
    """One column of numbers beside a picture: a cloud, measured; `first` marks first positions.

    `fools`: whether this reading fools the metrics of the cloud's `fooled` ("some"), or no metric, or all.
    """

    label: str
    x: Array  # (n, d)
    sequences: NDArray[np.uint64] | None = None
    first: NDArray[np.bool_] | None = None
    positions: str = "all"
    fools: Literal["some", "none", "all"] = "some"

    def measure(self, *, neighbours: bool = True) -> dict[str, tuple[float | None, float | None]]:
        """Value and isotropic null by metric; of `cosine_share` the largest."""
        moments = Moments(self.x.shape[1])
        moments.update(torch.from_numpy(self.x), sequences=self.sequences, first=self.first)
        found = measure_cloud(moments, neighbours=neighbours).estimates[self.positions]
        return {e.metric: (e.value, e.null) for e in reversed(found)}  # reversed: the first of several stays


@dataclass(frozen=True)
class Cloud:
    """A cloud with what it does to metrics; the plane to draw is given by two directions (d, 2)."""

    title: str
    readings: tuple[Reading, ...]
    plane: Array
    axes: tuple[str, str]
    fooled: tuple[str, ...]
    sees: tuple[str, ...]
    shades: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # parts of the first reading, by name
    squeezed: bool = False  # the second axis is drawn logarithmically beyond 10


def basis(d: int, *which: int) -> Array:
    """Columns of the identity, as a plane to draw."""
    return np.eye(d)[:, list(which)]


def turned(x: Array, *, seed: int) -> Array:
    """The cloud after a random rotation of the space."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((x.shape[1], x.shape[1])))
    return x @ (q * np.sign(np.diag(r)))


def opposite_cones() -> Cloud:
    """Two narrow cones on the two sides of the origin: every pair is at +1 or −1, and the average is 0."""
    rng = np.random.default_rng(0)
    x = 0.05 * rng.standard_normal((VECTORS, 64))
    x[:, 0] += np.tile([1.0, -1.0], VECTORS // 2)
    return Cloud(
        "Two opposite cones",
        (Reading("value", x),),
        basis(64, 0, 1),
        ("dimension 0", "dimension 1"),
        fooled=("mean_cosine", "drift_ratio", "vmf_kappa", "rayleigh_p"),
        sees=("cosine_sd", "bingham_p", "participation_ratio_unbiased", "uniformity"),
    )


def far_ball() -> Cloud:
    """A round ball far from the origin: the covariance is that of an isotropic cloud."""
    d = 64
    direction = np.full(d, d**-0.5)
    x = np.random.default_rng(1).standard_normal((VECTORS, d)) + 3 * d**0.5 * direction
    across = (np.eye(d)[0] - np.eye(d)[1]) / 2**0.5
    return Cloud(
        "A round ball, far from the origin",
        (Reading("value", x),),
        np.stack([direction, across], axis=1),
        ("along the mean", "across"),
        fooled=("isoscore", "participation_ratio_unbiased", "effective_rank", "pc1_share", "mean_cosine_centred"),
        sees=("mean_cosine", "drift_ratio", "rankme", "equivalent_dimension"),
    )


def massive_coordinate() -> Cloud:
    """An isotropic cloud but for one coordinate; then without that coordinate, and in another basis."""
    x = np.random.default_rng(2).standard_normal((VECTORS, 64))
    x[:, 0] = 12 + 4 * x[:, 0]
    return Cloud(
        "One coordinate makes the cosine",
        (
            Reading("as it is", x),
            Reading("without it", x[:, 1:], fools="none"),
            Reading("turned", turned(x, seed=0), fools="all"),
        ),
        basis(64, 0, 1),
        ("dimension 0", "dimension 1"),
        fooled=("mean_cosine", "isoscore"),
        sees=("cosine_share", "mean_dimensions", "outlier_dimensions"),
    )


def attention_sink() -> Cloud:
    """A drifted cloud, and 2 % of vectors (the first position of each text) a hundred times as long, elsewhere."""
    rng, d = np.random.default_rng(3), 64
    x = rng.standard_normal((VECTORS, d))
    x[:, 0] += d**0.5
    first = np.arange(VECTORS) % 50 == 0
    x[first] = 0.1 * x[first] + 1000 * np.eye(d)[1]
    sequences = (np.arange(VECTORS) // 50).astype(np.uint64)
    readings = (Reading("all", x, sequences, first), Reading("rest", x, sequences, first, "rest", "none"))
    return Cloud(
        "A sink: 2 % of the vectors, a hundred times as long",
        readings,
        basis(d, 0, 1),
        ("dimension 0", "dimension 1"),
        fooled=("drift_ratio", "pc1_share", "isoscore", "effective_rank"),
        sees=("mean_cosine", "norm_cv"),
        shades={"first positions": first},
        squeezed=True,
    )


def thin_plane() -> Cloud:
    """Isotropic within 16 of 256 dimensions: no direction is preferred, and hardly any is used."""
    d, k = 256, 16
    x = np.zeros((VECTORS, d))
    x[:, :k] = np.random.default_rng(4).standard_normal((VECTORS, k))
    return Cloud(
        "A plane of 16 dimensions in 256",
        (Reading("value", x + 1e-3 * np.random.default_rng(5).standard_normal(x.shape)),),
        basis(d, 0, k),
        ("dimension 0", "dimension 16"),
        fooled=("mean_cosine", "mean_cosine_centred", "rayleigh_p", "uniformity"),
        sees=("participation_ratio_unbiased", "equivalent_dimension", "cosine_sd", "bingham_p"),
    )


def long_text() -> Cloud:
    """Thirty texts, each about a direction of its own; one of them is two fifths of the data."""
    rng, d, texts = np.random.default_rng(6), 64, 30
    lengths = np.array([2 * VECTORS // 5] + [3 * VECTORS // 5 // (texts - 1)] * (texts - 1))
    centres = rng.standard_normal((texts, d))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    which = np.repeat(np.arange(texts), lengths)
    x = centres[which] + 0.06 * rng.standard_normal((len(which), d))
    across = centres[1] - (centres[1] @ centres[0]) * centres[0]
    return Cloud(
        "Thirty texts, one of them long",
        (Reading("value", x, which.astype(np.uint64)),),
        np.stack([centres[0], across / np.linalg.norm(across)], axis=1),
        ("along the long text", "across"),
        fooled=("mean_cosine", "drift_ratio", "resultant"),
        sees=("mean_cosine_inter", "mean_cosine_intra", "effective_n"),
        shades={"the long text": which == 0},
    )


def two_clusters() -> Cloud:
    """Two round clusters: the line between them is the first component; inside each, nothing is preferred."""
    x = np.random.default_rng(7).standard_normal((VECTORS, 64))
    x[:, 0] += np.tile([12.0, -12.0], VECTORS // 2)
    right = x[:, 0] > 0
    return Cloud(
        "Two round clusters",
        (Reading("both", x), Reading("one", x[right], fools="none")),
        basis(64, 0, 1),
        ("dimension 0", "dimension 1"),
        fooled=("isoscore", "participation_ratio_unbiased", "pc1_share"),
        sees=("twonn", "mle_dimension"),
    )


CLOUDS = {
    "opposite-cones": opposite_cones,
    "far-ball": far_ball,
    "massive-coordinate": massive_coordinate,
    "attention-sink": attention_sink,
    "thin-plane": thin_plane,
    "long-text": long_text,
    "two-clusters": two_clusters,
}
