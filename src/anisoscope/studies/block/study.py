"""The block study as a run: settings that a TOML file holds, a verdict in words, and a comparison with trained models.

measurement = run_blocks(BlockPlan(arch=["bert", "gpt2", "llama"]), out=Path("blocks"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from anisoscope.errors import InputError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.progress import track
from anisoscope.runs.store import Existing, Run, open_run
from anisoscope.runs.table import Row
from anisoscope.studies.block.experiment import GRID, BlockSettings, block_study


class BlockPlan(Settings):
    """What `anisoscope block` does. Lists of `arch`, `input` and `without` give every combination, side by side."""

    command = "block"

    arch: list[str] = Field(default_factory=lambda: ["bert"])
    input: list[str] = Field(default_factory=lambda: ["table"])
    without: list[str] = Field(default_factory=lambda: ["none"])
    norms: list[float] = Field(default_factory=lambda: list(GRID))
    seeds: int = 5
    sequences: int = 2
    length: int = 512
    depth: int = 1
    init_std: float | None = None
    qk_bias: bool = False
    against: list[str] = Field(default_factory=list)

    def experiments(self) -> list[BlockSettings]:
        shared: dict[str, Any] = {
            name: getattr(self, name) for name in ("seeds", "sequences", "length", "depth", "init_std", "qk_bias")
        }
        shared["norms"] = tuple(self.norms)
        return [
            BlockSettings(arch=arch, input=kind, without=None if branch == "none" else branch, **shared)  # pyright: ignore[reportArgumentType]  (BlockSettings checks both)
            for arch, kind, branch in product(self.arch, self.input, self.without)
        ]


def run_blocks(plan: BlockPlan, *, out: Path | None = None, existing: Existing = "resume") -> Measurement:
    """Run the experiments of a plan and keep them; a finished run of the same plan is used again."""
    experiments = plan.experiments()
    trained = [open_run(folder) for folder in plan.against]
    folder = out or default_folder(plan, name="+".join(Path(arch).name for arch in plan.arch))
    finished = reuse_or_begin(folder, plan, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    draws = sum(experiment.seeds for experiment in experiments)
    with track("running untrained blocks", total=draws, unit="draws") as bar:
        result = block_study(experiments, finished=lambda _label: bar.advance())
    rows = [*result.rows, *(row for run in trained for row in hidden_norm_rows(result.rows, run))]
    protocol = {experiment.label: experiment.protocol for experiment in experiments}
    verdict = "; ".join(verdict_on(experiment.label, rows) for experiment in experiments)
    found = Measurement(tuple(rows), verdict, (), None, plan.command, plan.as_dict(), protocol, arrays=result.arrays)
    return Measurement.of_run(found.save(folder, seconds=result.seconds))


def hidden_norm_rows(rows: Sequence[Row], run: Run) -> list[Row]:
    """The mean norms of a trained model's blocks over N*, for every experiment that has one."""
    norms = [row for row in run.rows(metric="mean_norm", positions="all") if row.layer is not None and row.value]
    if not norms:
        raise InputError("this run holds no norms of blocks", where=run.folder, do="give a run of `anisoscope measure`")
    compared = []
    for fixed in (row for row in rows if row.metric == "fixed_point" and row.seed is None):
        for norm in norms:
            assert norm.value is not None
            trained = f"mean norm {norm.value:.4g} at {norm.site} of {norm.model or run.name}"
            row = Row(model=fixed.model, site=norm.site, layer=norm.layer, metric="norm_over_fixed_point", n=norm.n)
            if not fixed.value:
                note = f"{trained}; no fixed point to compare with" if fixed.value is None else f"{trained}; N* = 0"
                compared.append(replace(row, note=note))
                continue
            ends = {end: getattr(norm, end) / fixed.value for end in ("low", "high") if getattr(norm, end) is not None}
            note = f"{trained}; N* = {fixed.value:.4g}"
            compared.append(replace(row, value=norm.value / fixed.value, note=note, protocol=norm.protocol, **ends))
    return compared


def verdict_on(label: str, rows: Sequence[Row]) -> str:
    """The paper's statements about one experiment, as they came out on average over the draws."""
    value = {(row.site, row.metric, row.at): row.value for row in rows if row.model == label and row.seed is None}
    norms = sorted({at for _, _, at in value if at is not None})
    gaps = [(value["output", "mean_cosine", at] or 0.0) - (value["input", "mean_cosine", at] or 0.0) for at in norms]
    words = [f"output cosine above input cosine at {sum(gap > 0 for gap in gaps)} of {len(norms)} drift norms"]
    crossing = value["output", "fixed_point", None]
    reach = f"[{norms[0]:g}, {norms[-1]:g}]"
    words.append(f"no fixed point in {reach}" if crossing is None else f"norms meet at N* = {crossing:.4g}")
    ends = [value.get(("softmax", "max_probability", at)) for at in (norms[0], norms[-1])]
    if ends[0] and ends[1]:
        change = ends[1] / ends[0]
        words.append(
            f"drift makes attention {'sharper' if change > 1 else 'flatter'} (largest probability ×{change:.3g})"
        )
    return f"{label}: {', '.join(words)}"
