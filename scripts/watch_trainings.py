"""Watch trainings that are over: the probe of the monitor on every checkpoint, one line per step.

    anisoscope variants --plan docs/studies/plans/warning.toml --out warning
    python scripts/watch_trainings.py warning docs/studies/tables/warning-series.csv

The probe is 16 held-out windows of the training's own text. Of each metric the line has the worst layer: the greatest
value, or the least where low values are the bad ones; the parts of the greatest logit are those of the head that has
it. Losses are those of the log: `training_loss` is the mean since the line before. What is in the table is kept.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from anisoscope.runs.table import Row
from anisoscope.training.pretrain import make_model, open_data
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import read_log
from anisoscope.watch.probe import Probe

WINDOWS = 16
LAST = ("mean_cosine", "effective_rank", "mean_norm")  # of the last block
WORST = ("massive_activation_ratio", "kurtosis", "entropy_collapse", "max_logit", "query_drift_ratio")
PARTS = ("max_logit_means", "max_logit_query", "max_logit_salience", "max_logit_content")
COLUMNS: tuple[str, ...] = (
    "arm",
    "seed",
    "step",
    "training_loss",
    "validation_loss",
    *LAST,
    *WORST,
    "entropy_normalised",
    *PARTS,
)


def line_of(rows: list[Row], *, last: str) -> dict[str, float | None]:
    """The numbers of one observation."""
    blocks = [row for row in rows if row.head is None and row.positions == "all" and row.site.startswith("block.")]
    known = {name: [row for row in blocks if row.metric == name and row.value is not None] for name in COLUMNS}
    line: dict[str, float | None] = {row.metric: row.value for name in LAST for row in known[name] if row.site == last}
    for name in (*WORST, "entropy_normalised"):
        values = [row.value or 0.0 for row in known[name]]
        line[name] = None if not values else min(values) if name == "entropy_normalised" else max(values)
    top = max(known["max_logit"], key=lambda row: row.value or 0.0, default=None)
    parts = [row for name in PARTS for row in known[name] if top is not None and row.site == top.site]
    return {**line, **{row.metric: row.value for row in parts}}


def watch(folder: Path, arm: str, seed: int) -> Iterator[dict[str, object]]:
    """One line per checkpoint of a training."""
    recipe = Recipe.read(folder / "training" / arm / "recipe.toml")
    data = open_data(recipe, folder)
    model, held_out = make_model(recipe, data, seed), data.held_out()
    probe = Probe({"input_ids": torch.stack([torch.tensor(held_out[i]["input_ids"]) for i in range(WINDOWS)])})
    for record in read_log(folder / "training" / arm, seed):
        checkpoint = folder / "training" / arm / f"seed-{seed}" / f"checkpoint-{record['step']}"
        if not checkpoint.is_dir():
            continue
        model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)  # the head is tied
        rows = probe.run(model).as_rows(step=record["step"])
        yield {"arm": arm, "seed": seed, **record, **line_of(rows, last=f"block.{recipe.layers - 1}")}


def main(folder: Path, table: Path) -> None:
    torch.set_num_threads(1)
    lines = list(csv.DictReader(table.open())) if table.exists() else []
    known = {(line["arm"], line["seed"]) for line in lines}
    for path in sorted(folder.glob("training/*/seed-*/log.jsonl")):
        arm, seed = path.parts[-3], path.parts[-2].removeprefix("seed-")
        if (arm, seed) not in known:
            lines += [{name: _short(value) for name, value in line.items()} for line in watch(folder, arm, int(seed))]
            print(arm, seed, flush=True)
            with table.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else value


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
