"""The untrained block: what a common drift of the inputs does to one Transformer block before any training.

Section 4 of *Anisotropy Is Inherent to Self-Attention in Transformers*. Vectors x are drawn uniformly from an embedding
table at initialisation, a drift of norm N in a random direction is added to all of them, and the block is run:

    b = N·b_u/‖b_u‖, b_u ~ N(0, I);   input x + b;   output T(x + b)

    result = block_study(BlockSettings())                      # the paper's block: BERT-base at BERT's initialisation
    result = block_study(BlockSettings(arch="llama", depth=4))

At every N and for every draw of weights, table and direction: mean cosine and norms of input, output, queries and keys;
the scores before softmax; the softmax rows; the means that equation 1 expects of queries and keys,
W(x̄ + b) + bias, beside the measured ones; and the fixed point N* where E‖x + b‖ = E‖T(x + b)‖.

Cost: one forward pass of `sequences`×`length` vectors for each N and draw. The paper's 16×512 vectors are dealt out: by
default 5 draws of 2×512 (10,240 vectors), since draws of weights differ far more than sequences within a draw do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.errors import UsageError
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.runs.table import Row, to_table
from anisoscope.studies.block.architectures import Branch, Stack, build, configuration
from anisoscope.studies.block.attention import AttentionNumbers, FirstAttention
from anisoscope.studies.block.fixed_point import InputNorms, NormCurve, fixed_point
from anisoscope.studies.block.rows import fixed_point_rows, measurement_rows

if TYPE_CHECKING:
    import pyarrow as pa

GRID = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0)
_TABLE_SIZE = 30_522  # vectors in the table of an architecture that has no vocabulary


@dataclass(frozen=True)
class BlockSettings:
    """One experiment on untrained blocks.

    - `arch`: a name of `block_architectures.ARCHITECTURES`, a folder with a config.json, or a transformers config.
    - `input`: `table` (vectors straight from the embedding table) or `embeddings` (what the network's own embedding
      layer makes of random inputs: positions, token types, LayerNorm).
    - `qk_bias`, `init_std`, `without`: see `block_architectures.build`.
    """

    arch: str | Any = "bert"
    norms: tuple[float, ...] = GRID
    seeds: int = 5
    sequences: int = 2
    length: int = 512
    input: Literal["table", "embeddings"] = "table"
    depth: int = 1
    init_std: float | None = None
    qk_bias: bool = False
    without: Branch | None = None

    def __post_init__(self) -> None:
        if len(self.norms) < 2 or min(self.norms) < 0 or sorted(set(self.norms)) != list(self.norms):
            raise UsageError("the drift norms must grow from 0 or more", got=self.norms, expected="e.g. 0, 10, 20")
        if self.input not in ("table", "embeddings"):
            raise UsageError("unknown input", got=self.input, expected="table or embeddings")
        if self.without not in (None, "attention", "mlp"):
            raise UsageError("unknown branch to leave out", got=self.without, expected="attention or mlp")
        counts = {"seeds": self.seeds, "sequences": self.sequences, "depth": self.depth}
        for name, count in counts.items():
            if count < 1:
                raise UsageError(f"{name} must be at least 1", got=count)
        if self.length < 2:
            raise UsageError("a sequence needs at least 2 vectors", got=self.length)

    @property
    def label(self) -> str:
        """The name of the experiment in tables and figures: the architecture and what was changed in it."""
        name = Path(self.arch).name if isinstance(self.arch, str) else self.arch.model_type
        changes = [
            "embeddings" if self.input == "embeddings" else "",
            f"depth {self.depth}" if self.depth > 1 else "",
            f"std {self.init_std:g}" if self.init_std is not None else "",
            "q/k bias" if self.qk_bias else "",
            f"no {self.without}" if self.without else "",
        ]
        return ", ".join([name, *filter(None, changes)])

    @property
    def protocol(self) -> str:
        source = "the embedding table" if self.input == "table" else "the embedding layer"
        return (
            f"{self.seeds} draws of weights, vectors and direction; {self.sequences}×{self.length} vectors a draw from "
            f"{source}; all pairs; scores and rows of the first block's attention"
        )

    def as_dict(self) -> dict[str, Any]:
        """What reproduces the experiment, as JSON can hold it."""
        names = ("norms", "seeds", "sequences", "length", "input", "depth", "init_std", "qk_bias", "without")
        arch = self.arch if isinstance(self.arch, str) else self.arch.to_diff_dict()
        return {"arch": arch, **{name: getattr(self, name) for name in names}}


def paper_settings(**changes: Any) -> BlockSettings:
    """The paper's sizes: 16 sequences of 512 for each draw (some minutes on two cores)."""
    return BlockSettings(**{"sequences": 16, **changes})


@dataclass(frozen=True)
class BlockResult:
    """Rows of one or more experiments, and the arrays that the figures need, by `<label>/<name>`."""

    settings: tuple[BlockSettings, ...]
    rows: list[Row]
    arrays: dict[str, NDArray[Any]]
    seconds: float

    def table(self) -> pa.Table:
        return to_table(self.rows)


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


def draw(settings: BlockSettings, seed: int) -> Draw:
    """Weights from the seed, then vectors and direction from a generator of their own."""
    stack = build(
        settings.arch,
        seed=seed,
        depth=settings.depth,
        init_std=settings.init_std,
        qk_bias=settings.qk_bias,
        without=settings.without,
    )
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(stack.width, generator=generator)
    vectors, mean = _inputs(settings, stack, generator)
    return Draw(seed, stack, vectors, direction / direction.norm(), mean)


def _inputs(settings: BlockSettings, stack: Stack, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The vectors of a draw and the mean of what they are drawn from."""
    shape = (settings.sequences, settings.length)
    if settings.input == "embeddings":
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


def block_study(
    settings: BlockSettings | Sequence[BlockSettings], *, finished: Callable[[str], None] | None = None
) -> BlockResult:
    """Run one experiment, or several side by side; `finished` is told the experiment's label after each draw."""
    experiments = (settings,) if isinstance(settings, BlockSettings) else tuple(settings)
    labels = [experiment.label for experiment in experiments]
    if len(set(labels)) < len(labels):
        raise UsageError("two experiments with one name cannot be told apart", got=", ".join(labels))
    for experiment in experiments:
        configuration(experiment.arch)  # refuse an unknown name before any work
    started = time.monotonic()
    rows: list[Row] = []
    arrays: dict[str, NDArray[Any]] = {}
    for experiment in experiments:
        sweeps = []
        for seed in range(experiment.seeds):
            sweeps.append(sweep(experiment, seed))
            if finished is not None:
                finished(experiment.label)
        rows += measurement_rows(experiment, sweeps) + fixed_point_rows(experiment, sweeps)
        arrays |= {f"{experiment.label}/{name}": array for name, array in _arrays(experiment, sweeps).items()}
    return BlockResult(experiments, rows, arrays, time.monotonic() - started)


def sweep(settings: BlockSettings, seed: int) -> Sweep:
    """One draw at every N, then its fixed points."""
    drawn = draw(settings, seed)
    result = Sweep(seed, drawn.stack.width, drawn.vectors.shape[0] * drawn.vectors.shape[1])
    if drawn.stack.attention:
        _watched_sweep(settings, drawn, result)
    else:
        for norm in settings.norms:
            result.numbers.append(_site_numbers(drawn.at(norm), drawn.stack.run(drawn.at(norm))))
    inputs = drawn.input_norms()
    for name, entering, kind in (
        ("fixed_point", inputs.mean_norm, "mean_norm"),
        ("fixed_point_of_mean", inputs.norm_of_mean, "norm_of_mean"),
    ):
        output = [numbers["output", kind] for numbers in result.numbers]
        result.curves[name] = curve = NormCurve(entering, at=settings.norms, output=output)
        result.fixed_points[name] = fixed_point(
            curve, lambda norm, kind=kind: drawn.output_norm(norm, kind), settings.norms[0], settings.norms[-1]
        )
    return result


def _watched_sweep(settings: BlockSettings, drawn: Draw, result: Sweep) -> None:
    """Run the blocks at every N while their first attention layer is watched."""
    watcher = FirstAttention()
    means = torch.stack([drawn.mean + norm * drawn.direction for norm in settings.norms])
    with AttentionCapture(drawn.stack.module, watcher):
        drawn.stack.run(means[:, None].expand(-1, 2, -1))  # (N, 2, d): twice, to see whether the position matters
        expected = _expected_means(watcher, settings.norms)
        measured: dict[str, list[Tensor]] = {site: [] for site in expected}
        for k, norm in enumerate(settings.norms):
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


def _arrays(settings: BlockSettings, sweeps: Iterable[Sweep]) -> dict[str, NDArray[Any]]:
    """Histograms, head means and mean vectors of all draws, (draws, N, …)."""
    sweeps = list(sweeps)
    arrays: dict[str, NDArray[Any]] = {"norms": np.array(settings.norms)}
    if sweeps[0].attention:
        for name in ("edges", "counts", "by_head"):
            arrays[f"scores_{name}"] = np.stack([[getattr(a, name) for a in s.attention] for s in sweeps])
    for name in sweeps[0].arrays:
        arrays[name] = np.stack([s.arrays[name] for s in sweeps])
    return arrays
