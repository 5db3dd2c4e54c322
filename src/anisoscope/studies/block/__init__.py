"""Drifting vectors through an untrained block: cosine, norms, softmax.

Section 4 of *Anisotropy Is Inherent to Self-Attention in Transformers*, with intervals over draws, on any architecture
(`experiment`). Lists of `arch`, `input` and `without` give every combination, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from anisoscope.errors import UsageError
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Settings, option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row
from anisoscope.studies.block.story import story

if TYPE_CHECKING:
    from anisoscope.studies.block.experiment import Experiment

GRID = [0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0]


class BlockSettings(Settings):
    """What `anisoscope block` is asked."""

    arch: list[str] = option(
        "Architectures: bert, roberta, modernbert, gpt2, opt, neox, llama, olmo2, t5, vit, convnext, resnet, "
        "or folders with a config.json.",
        ["bert"],
        commas=True,
        paths=True,
        min_length=1,
    )
    input: list[Literal["table", "embeddings"]] = option(
        "Vectors of the embedding table, or of the embedding layer.", ["table"], min_length=1
    )
    without: list[Literal["none", "attention", "mlp"]] = option("Branches to remove.", ["none"], min_length=1)
    norms: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = option("Drift norms N.", GRID, min_length=2)
    seeds: int = option("Draws of weights, vectors and direction.", 5, ge=1, le=10_000)
    sequences: int = option("Sequences per draw; the paper uses 16 (takes minutes).", 2, ge=1, le=2**20)
    length: int = option("Vectors per sequence.", 512, ge=2, le=2**20)
    depth: int = option("Untrained blocks on top of each other.", 1, ge=1, le=1000)
    init_std: float | None = option("Standard deviation of the initialisation.", None, gt=0, allow_inf_nan=False)
    qk_bias: bool = option("Query and key biases as nn.Linear draws them, U(±1/√d), instead of zero.", False)
    against: list[str] = option("Runs of trained models, whose hidden norms are compared with N*.", [], paths=True)

    @field_validator("norms")
    @classmethod
    def _growing(cls, norms: list[float]) -> list[float]:
        if sorted(set(norms)) != norms:
            raise ValueError("the drift norms must grow, such as 0,10,20")
        return norms


def experiments(settings: BlockSettings) -> list[Experiment]:
    """Every combination of architecture, input and branch left out."""
    from anisoscope.models.labels import labels
    from anisoscope.studies.block.architectures import configuration
    from anisoscope.studies.block.experiment import Experiment

    names = dict(zip(settings.arch, labels(settings.arch), strict=True))
    if len(names) < len(settings.arch):
        raise UsageError("an architecture is named twice", got=", ".join(settings.arch))
    for arch in names:
        configuration(arch)  # refuse an unknown name before any work
    shared = {
        name: getattr(settings, name) for name in ("seeds", "sequences", "length", "depth", "init_std", "qk_bias")
    }
    shared["norms"] = tuple(settings.norms)
    return [
        Experiment(arch, names[arch], input=kind, without=None if branch == "none" else branch, **shared)
        for arch, kind, branch in product(names, dict.fromkeys(settings.input), dict.fromkeys(settings.without))
    ]


def measure(job: Job) -> Findings:
    """Run the experiments, one draw after the other, and compare their fixed points with trained models."""
    from anisoscope.runs.progress import track
    from anisoscope.runs.writing import file_sha256
    from anisoscope.studies.block.experiment import run_experiment
    from anisoscope.studies.block.rows import hidden_norm_rows

    settings, planned = job.settings, experiments(job.settings)
    for config in (Path(arch) / "config.json" for arch in settings.arch):
        if config.is_file():
            job.remember(f"file {config}", kind="file", name=str(config), fingerprint=file_sha256(config))
    trained = [job.open_run(folder) for folder in settings.against]
    job.begin()
    rows: list[Row] = []
    arrays: dict[str, Any] = {}
    draws = sum(experiment.seeds for experiment in planned)
    with track("running untrained blocks", total=draws, unit="draws") as bar:
        for experiment in planned:
            found, curves = run_experiment(experiment, finished=bar.advance)
            rows += found
            arrays |= curves
    rows += [row for run in trained for row in hidden_norm_rows(rows, run)]
    protocol = {experiment.label: experiment.protocol for experiment in planned}
    return Findings(rows, " ".join(verdict(label, rows) for label in protocol), arrays, protocol=protocol)


def verdict(label: str, rows: Sequence[Row]) -> str:
    """The paper's statements about one experiment, as they came out on average over the draws."""
    value = {(row.site, row.metric, row.at): row.value for row in rows if row.model == label and row.seed is None}
    norms = sorted({at for _, _, at in value if at is not None})
    above = sum(
        (value["output", "mean_cosine", at] or 0.0) > (value["input", "mean_cosine", at] or 0.0) for at in norms
    )
    crossing, reach = value["output", "fixed_point", None], f"N = {norms[0]:g} to {norms[-1]:g}"
    said = [f"the output cosine is above the input cosine at {above} of {len(norms)} drift norms"]
    said.append(f"the norms do not meet from {reach}" if crossing is None else f"the norms meet at N* = {crossing:.4g}")
    first, last = (value.get(("softmax", "max_probability", at)) for at in (norms[0], norms[-1]))
    if first and last:
        said.append(
            f"the largest probability is {last / first:.3g} times as large at N = {norms[-1]:g} as at {norms[0]:g}"
        )
    return f"{label}: {', '.join(said[:-1])}{' and ' if said[1:] else ''}{said[-1]}."


STUDY = Study(
    BlockSettings,
    measure=measure,
    story=story,
    subject=lambda settings: "+".join(Path(arch).name for arch in settings.arch),
    machine=("threads",),
    help="""
Put drifting vectors through an untrained block: cosine, norms, fixed point, queries, keys, softmax.

Section 4 of "Anisotropy Is Inherent to Self-Attention in Transformers", with intervals over draws, on any architecture.
By default one BERT-base layer at BERT's initialisation; the paper's sizes are --sequences 16.

Examples:
  anisoscope block
  anisoscope block --arch bert,gpt2,llama,convnext --out blocks
  anisoscope block --input table,embeddings
  anisoscope block --without none,attention,mlp
  anisoscope block --arch gpt2 --depth 12 --seeds 3
  anisoscope block --against runs/bert-base
""",
)
