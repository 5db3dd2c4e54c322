"""The untrained block: what a common drift of the inputs does to one Transformer block before any training.

Section 4 of *Anisotropy Is Inherent to Self-Attention in Transformers*. Vectors x are drawn uniformly from an embedding
table at initialisation, a drift of norm N in a random direction is added to all of them, and the block is run:

    b = N·b_u/‖b_u‖, b_u ~ N(0, I);   input x + b;   output T(x + b)

    rows, arrays = run_experiment(Experiment("llama", "llama", norms=(0, 10, 60), depth=4))

At every N and for every draw of weights, table and direction: mean cosine and norms of input, output, queries and keys;
the scores before softmax; the softmax rows; the means that equation 1 expects of queries and keys,
W(x̄ + b) + bias, beside the measured ones; and the fixed point N* where E‖x + b‖ = E‖T(x + b)‖.

Cost: one forward pass of `sequences`×`length` vectors for each N and draw. The paper's 16×512 vectors are dealt out: by
default 5 draws of 2×512 (10,240 vectors), since draws of weights differ far more than sequences within a draw do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.runs.table import Row
from anisoscope.studies.block.architectures import Branch, Stack, build
from anisoscope.studies.block.attention import AttentionNumbers, FirstAttention
from anisoscope.studies.block.fixed_point import InputNorms, NormCurve, fixed_point
from anisoscope.studies.block.rows import fixed_point_rows, measurement_rows

_TABLE_SIZE = 30_522  # vectors in the table of an architecture that has no vocabulary


@dataclass(frozen=True)
class Experiment:
    """One experiment on untrained blocks.

    - `arch`: a name of `architectures.ARCHITECTURES`, a folder with a config.json, or a transformers config;
    - `name`: what the architecture is called in tables and figures;
    - `input`: `table` (vectors straight from the embedding table) or `embeddings` (what the network's own embedding
      layer makes of random inputs: positions, token types, LayerNorm);
    - `qk_bias`, `init_std`, `without`: see `architectures.build`.
    """

    arch: str | Any
    name: str
    norms: tuple[float, ...]
    seeds: int = 5
    sequences: int = 2
    length: int = 512
    input: Literal["table", "embeddings"] = "table"
    depth: int = 1
    init_std: float | None = None
    qk_bias: bool = False
    without: Branch | None = None

    @property
    def label(self) -> str:
        """The name of the experiment in tables and figures: the architecture and what was changed in it."""
        changes = [
            "embeddings" if self.input == "embeddings" else "",
            f"depth {self.depth}" if self.depth > 1 else "",
            f"std {self.init_std:g}" if self.init_std is not None else "",
            "q/k bias" if self.qk_bias else "",
            f"no {self.without}" if self.without else "",
        ]
        return ", ".join([self.name, *filter(None, changes)])

    @property
    def protocol(self) -> str:
        source = "the embedding table" if self.input == "table" else "the embedding layer"
        return (
            f"{self.seeds} draws of weights, vectors and direction; {self.sequences}×{self.length} vectors per draw "
            f"from {source}; all pairs; scores and rows of the first block's attention"
        )


@dataclass(frozen=True)
class Draw:
    """One draw of weights, vectors (B, T, d) and direction (d,); `mean` is what equation 1 calls x̄."""

    seed: int
    stack: Stack
    vectors: Tensor
    direction: Tensor
    mean: Tensor

    def at(self, norm: float) -> Tensor:
        """The vectors with the drift of that norm."""
        return self.vectors + norm * self.direction

    def input_norms(self) -> InputNorms:
        x, direction = self.vectors.flatten(0, 1).double(), self.direction.double()
        mean = x.mean(0)
        return InputNorms(
            squares=x.square().sum(1).numpy(),
            along=(x @ direction).numpy(),
            mean_square=mean.square().sum().item(),
            mean_along=(mean @ direction).item(),
        )

    def output_norm(self, norm: float, kind: str) -> float:
        outputs = self.stack.run(self.at(norm))
        return cloud_numbers(outputs[f"block.{len(self.stack.blocks) - 1}"])[kind]


@dataclass
class Sweep:
    """What one draw gave: a number for each (site, metric) and N, and the details of attention at each N."""

    seed: int
    width: int
    vectors: int
    numbers: list[dict[tuple[str, str], float]] = field(default_factory=list)
    attention: list[AttentionNumbers] = field(default_factory=list)
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    fixed_points: dict[str, float | None] = field(default_factory=dict)
    curves: dict[str, NormCurve] = field(default_factory=dict)


def draw(experiment: Experiment, seed: int) -> Draw:
    """Weights from the seed, then vectors and direction from a generator of their own."""
    stack = build(
        experiment.arch,
        seed=seed,
        depth=experiment.depth,
        init_std=experiment.init_std,
        qk_bias=experiment.qk_bias,
        without=experiment.without,
    )
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(stack.width, generator=generator)
    vectors, mean = _inputs(experiment, stack, generator)
    return Draw(seed, stack, vectors, direction / direction.norm(), mean)


def _inputs(experiment: Experiment, stack: Stack, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The vectors of a draw and the mean of what they are drawn from."""
    shape = (experiment.sequences, experiment.length)
    if experiment.input == "embeddings":
        vectors = stack.embed(*shape, generator)
        return vectors, vectors.mean((0, 1))
    if stack.module.main_input_name == "pixel_values":
        std = getattr(stack.module.config, "initializer_range", 0.02)
        table = std * torch.randn(_TABLE_SIZE, stack.width, generator=generator)
    else:
        table = stack.module.get_input_embeddings().weight.data
    return table[torch.randint(len(table), shape, generator=generator)], table.mean(0)


def cloud_numbers(hidden: Tensor) -> dict[str, float]:
    """Mean cosine over all pairs, mean norm and norm of the mean of vectors (B, T, d), in float64."""
    x = hidden.reshape(-1, hidden.shape[-1]).double()  # (n, d)
    norms = x.norm(dim=-1, keepdim=True)
    unit_sum = (x / norms.clamp_min(torch.finfo(torch.float64).tiny)).sum(0)
    return {
        "mean_cosine": float(mean_cosine(unit_sum.numpy(), len(x))),
        "mean_norm": norms.mean().item(),
        "norm_of_mean": x.mean(0).norm().item(),
    }


def run_experiment(
    experiment: Experiment, *, finished: Callable[[], None] = lambda: None
) -> tuple[list[Row], dict[str, NDArray[Any]]]:
    """The rows of an experiment, and the arrays that its figures need, by `<label>/<name>`.

    `finished` is called after each draw.
    """
    sweeps = []
    for seed in range(experiment.seeds):
        sweeps.append(sweep(experiment, seed))
        finished()
    rows = measurement_rows(experiment, sweeps) + fixed_point_rows(experiment, sweeps)
    return rows, {f"{experiment.label}/{name}": array for name, array in _arrays(experiment, sweeps).items()}


def sweep(experiment: Experiment, seed: int) -> Sweep:
    """One draw at every N, then its fixed points."""
    drawn = draw(experiment, seed)
    result = Sweep(seed, drawn.stack.width, drawn.vectors.shape[0] * drawn.vectors.shape[1])
    if drawn.stack.attention:
        _watched_sweep(experiment, drawn, result)
    else:
        for norm in experiment.norms:
            result.numbers.append(_site_numbers(drawn.at(norm), drawn.stack.run(drawn.at(norm))))
    inputs = drawn.input_norms()
    for name, entering, kind in (
        ("fixed_point", inputs.mean_norm, "mean_norm"),
        ("fixed_point_of_mean", inputs.norm_of_mean, "norm_of_mean"),
    ):
        output = [numbers["output", kind] for numbers in result.numbers]
        result.curves[name] = curve = NormCurve(entering, at=experiment.norms, output=output)
        result.fixed_points[name] = fixed_point(
            curve, lambda norm, kind=kind: drawn.output_norm(norm, kind), experiment.norms[0], experiment.norms[-1]
        )
    return result


def _watched_sweep(experiment: Experiment, drawn: Draw, result: Sweep) -> None:
    """Run the blocks at every N while their first attention layer is watched."""
    watcher = FirstAttention()
    means = torch.stack([drawn.mean + norm * drawn.direction for norm in experiment.norms])
    with AttentionCapture(drawn.stack.module, watcher):
        drawn.stack.run(means[:, None].expand(-1, 2, -1))  # (N, 2, d): twice, to see whether the position matters
        expected = _expected_means(watcher, experiment.norms)
        measured: dict[str, list[Tensor]] = {site: [] for site in expected}
        for k, norm in enumerate(experiment.norms):
            watcher.begin()
            outputs = drawn.stack.run(drawn.at(norm))
            numbers = _site_numbers(drawn.at(norm), outputs) | _attention_sites(watcher)
            for site, predicted in expected.items():
                mean, compared = _against_equation_1(watcher.vectors[site], predicted[k])
                numbers |= {(site, metric): value for metric, value in compared.items()}
                measured[site].append(mean)
            result.numbers.append(numbers)
            result.attention.append(watcher.numbers)
    for site, predicted in expected.items():
        result.arrays[f"{site}_mean"] = torch.stack(measured[site]).numpy()
        result.arrays[f"{site}_mean_expected"] = predicted.numpy()


def _site_numbers(entering: Tensor, outputs: dict[str, Tensor]) -> dict[tuple[str, str], float]:
    blocks = [site for site in outputs if site.startswith("block.")]
    sites = {"input": entering, "output": outputs[blocks[-1]]}
    sites |= {site: hidden for site, hidden in outputs.items() if len(blocks) > 1 or site not in blocks}
    return {(site, metric): value for site, x in sites.items() for metric, value in cloud_numbers(x).items()}


def _attention_sites(seen: FirstAttention) -> dict[tuple[str, str], float]:
    """Queries and keys (heads concatenated), scores and softmax of one call."""
    sites = {site: cloud_numbers(x) for site, x in seen.vectors.items()}
    sites |= {"scores": seen.numbers.scores, "softmax": seen.numbers.softmax}
    return {(site, metric): value for site, numbers in sites.items() for metric, value in numbers.items()}


def _expected_means(seen: FirstAttention, norms: Sequence[float]) -> dict[str, Tensor]:
    """Equation 1: the mean query is the query of the mean (N, d), where queries are one affine function of the input.

    Empty for a block with rotary positions or with a norm before the projection: the equation is not about those.
    """
    expected = {}
    for site, vectors in seen.vectors.items():
        here, elsewhere = vectors.double().unbind(1)
        if torch.equal(here, elsewhere) and _affine(here, norms):
            expected[site] = here
    return expected


def _against_equation_1(vectors: Tensor, expected: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The measured mean, and its distance from the expected one in units of its own sampling error."""
    x = vectors.flatten(0, 1).double()  # (n, d)
    mean, sampling = x.mean(0), (x.var(0).sum() / len(x)).sqrt()
    distance = ((mean - expected).norm() / sampling).item()
    return mean, {"expected_norm_of_mean": expected.norm().item(), "equation_1_distance": distance}


def _affine(values: Tensor, norms: Sequence[float]) -> bool:
    """Whether values (N, d) lie on a straight line in N, to float32 precision."""
    share = (torch.tensor(norms, dtype=torch.float64) - norms[0]) / (norms[-1] - norms[0])
    line = values[0] + share[:, None] * (values[-1] - values[0])
    return bool((values - line).norm() <= 1e-3 * values.norm())


def _arrays(experiment: Experiment, sweeps: Sequence[Sweep]) -> dict[str, NDArray[Any]]:
    """Histograms, head means and mean vectors of all draws, (draws, N, …)."""
    arrays: dict[str, NDArray[Any]] = {"norms": np.array(experiment.norms)}
    if sweeps[0].attention:
        for name in ("edges", "counts", "by_head"):
            arrays[f"scores_{name}"] = np.stack([[getattr(a, name) for a in s.attention] for s in sweeps])
    for name in sweeps[0].arrays:
        arrays[name] = np.stack([s.arrays[name] for s in sweeps])
    return arrays
