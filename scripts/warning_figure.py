"""The figure of the warning study: how trainings go wrong, and which rule saw it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = ("ramp_unclipped", "lr_30", "lr_100_unclipped")
PANELS = (
    ("training_loss", "Training loss, nats"),
    ("max_logit", "Greatest attention logit"),
    ("entropy_collapse", "Share of collapsed rows"),
)


def draw(trainings: Mapping[Any, Sequence[Mapping[str, float]]], alarms: Any, failing: set[Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    from anisoscope.report.figures.style import WIDE, colour, style

    with style():
        figure = plt.figure(figsize=(WIDE, 5.2), layout="constrained")
        grid = figure.add_gridspec(2, 3, height_ratios=(1, 1.35))
        for place, (metric, title) in enumerate(PANELS):
            axes = figure.add_subplot(grid[0, place])
            for (arm, _), series in trainings.items():
                if arm != "healthy" and arm not in SHOWN:
                    continue
                shade = "0.6" if arm == "healthy" else colour(SHOWN.index(arm))
                lines = [line for line in series if metric in line]
                label = arm.replace("_", " ")
                axes.plot(
                    [x["step"] for x in lines], [x[metric] for x in lines], color=shade, linewidth=0.7, label=label
                )
            axes.set(title=title, xlabel="step", yscale="linear" if metric == "entropy_collapse" else "log")
            if place == 0:
                handles, labels = axes.get_legend_handles_labels()
                unique = dict(zip(labels, handles, strict=True))
                axes.legend(unique.values(), unique.keys(), fontsize=6, loc="upper left")
                axes.set_ylim(2, 2000)
        _leads(figure.add_subplot(grid[1, :]), alarms, failing)
        figure.savefig(path, dpi=160)


def _leads(axes: Any, alarms: Any, failing: set[Any]) -> None:
    """When each rule warned first, one mark per failing training of the reported half."""
    from anisoscope.report.figures.style import colour, marker

    arms = sorted({arm for arm, _ in failing})
    losses, early = ("loss rises", "loss behind"), ("logit_growth", "norm_growth", "entropy_collapse")
    names = (*losses, *early, "rank_collapse", "massive_activation")
    for place, rule in enumerate(names):
        seen = [(arms.index(arm), alarms[arm, seed][rule]) for arm, seed in failing if seed % 2]
        seen = [(x + (place - 3) * 0.11, step) for x, step in seen if step is not None]
        axes.plot(
            *zip(*seen, strict=True),
            linestyle="",
            marker=marker(place),
            color=colour(place),
            label=rule.replace("_", " "),
        )
    axes.set_xticks(range(len(arms)), [arm.replace("_", " ") for arm in arms], rotation=20, ha="right", fontsize=6)
    axes.set(title="First alarm, by way of failing", ylabel="step")
    axes.legend(ncols=4, fontsize=6, loc="upper left")
    axes.margins(y=0.25)
