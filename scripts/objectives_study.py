"""Is a model without a vocabulary head less anisotropic only because it learned less? Both objectives at equal quality.

    anisoscope variants --plan docs/studies/plans/objectives.toml --threads 1 --out objectives
    python scripts/objectives_study.py objectives docs/studies

Quality is one number for both: the loss, in nats per byte of held-out text, of a linear head fitted to the frozen
states after the final norm (`head_loss`). The trainings keep their learning rate, so a checkpoint is the end of a
shorter training. Within each seed, the objective that ends with the lower loss is read where it passed the last loss of
the other, on a straight line between checkpoints (`matched`). Writes tables/objectives-matched.csv (every checkpoint;
those that it has are not measured again), tables/objectives-contrasts.csv and figures/objectives-matched.png.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anisoscope.geometry.cosine import mean_cosine
from anisoscope.inference.contrasts import equivalence_bound, interval_over_draws, paired_p
from anisoscope.models.open import open_model
from anisoscope.training.data.text import TextData
from anisoscope.training.recipe import Recipe

ARMS = ("clm", "headless")
FITTED, EPOCHS, BATCH, OTHER = 384, 6, 1024, 2**31  # windows that heads are fitted on, and the seed that they have
COLUMNS: list[str] = ["arm", "seed", "step", "head_loss", "mean_cosine"]
Point = tuple[float, float]  # loss and cosine
Pairs = tuple[torch.Tensor, torch.Tensor]  # states (n, d) and the tokens that follow them (n)


def windows(recipe: Recipe, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows to fit heads on, which no training began with, and the held-out ones."""
    data = TextData.open(recipe, folder)
    fresh, held_out = data.training(OTHER), data.held_out()
    return tuple(
        torch.tensor(np.stack([some[i]["input_ids"] for i in range(count)]))
        for some, count in ((fresh, FITTED), (held_out, len(held_out)))
    )  # pyright: ignore[reportReturnType]


def states(module: Any, ids: torch.Tensor) -> tuple[Pairs, float]:
    """The last states with what follows them, and the average cosine over all positions, averaged over the blocks."""
    found: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: found.append(_first(out))) for block in module.h]
    with torch.inference_mode():
        last = torch.cat([module(input_ids=some).last_hidden_state for some in ids.split(64)])
    for hook in hooks:
        hook.remove()
    cosines = [_cosine(torch.cat(found[k :: len(hooks)])) for k in range(len(hooks))]
    return (last[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), float(np.mean(cosines))


def _first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def _cosine(hidden: torch.Tensor) -> float:
    units = functional.normalize(hidden.double().flatten(0, 1), dim=-1)
    return float(mean_cosine(units.sum(0).numpy(), len(units)))


def head_loss(fitted: Pairs, held_out: Pairs, vocabulary: int, *, epochs: int = EPOCHS) -> float:
    """The held-out loss of multinomial regression on standardised states, by Adam from the frequencies of tokens."""
    mean, scale = fitted[0].mean(0), fitted[0].std(0).clamp(min=1e-6)
    (x, y), (x_new, y_new) = (((states - mean) / scale, tokens) for states, tokens in (fitted, held_out))
    frequencies = torch.bincount(y, minlength=vocabulary) + 0.1
    weight = torch.zeros(vocabulary, x.shape[1], requires_grad=True)
    bias = (frequencies / frequencies.sum()).log().requires_grad_()
    optimiser = torch.optim.Adam([weight, bias], lr=0.02)
    order = torch.Generator().manual_seed(0)
    steps = [some for _ in range(epochs) for some in torch.randperm(len(x), generator=order).split(BATCH)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=len(steps))
    for some in steps:
        optimiser.zero_grad()
        functional.cross_entropy(functional.linear(x[some], weight, bias), y[some]).backward()
        optimiser.step()
        schedule.step()
    with torch.inference_mode():
        return float(functional.cross_entropy(functional.linear(x_new, weight, bias), y_new))


def measure(grid: Path, table: Path) -> list[dict[str, str]]:
    """A line for every checkpoint of the grid, in the table and returned."""
    known = list(csv.DictReader(table.open())) if table.exists() else []
    done = {tuple(line[name] for name in COLUMNS[:3]) for line in known}
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for arm in ARMS:
            recipe = Recipe.read(grid / "training" / arm / "recipe.toml")
            to_fit, held_out = windows(recipe, grid / "training" / arm)
            for seed, step in ((seed, step) for seed in sorted(recipe.seeds) for step in recipe.grid()):
                place = (arm, str(seed), str(step))
                checkpoint = grid / "training" / arm / f"seed-{seed}" / f"checkpoint-{step}"
                if place in done or not step or not checkpoint.is_dir():
                    continue
                module: Any = open_model(str(checkpoint)).module
                (new, cosine), (old, _) = states(module, held_out), states(module, to_fit)
                loss = head_loss(old, new, module.config.vocab_size)
                line = (*place, f"{loss:.5f}", f"{cosine:.5f}")
                known.append(dict(zip(COLUMNS, line, strict=True)))
                writer.writerow(known[-1])
                file.flush()
    return known


def matched(one: Sequence[Point], other: Sequence[Point]) -> tuple[float, float, float]:
    """The higher of the two last losses, and the cosine of each where its loss first came down to it.

    >>> matched([(3.0, 0.1), (2.0, 0.3)], [(4.0, 0.0), (2.5, 0.2)])
    (2.5, 0.2, 0.2)
    """
    loss = max(one[-1][0], other[-1][0])
    return loss, _at(one, loss), _at(other, loss)


def _at(curve: Sequence[Point], loss: float) -> float:
    before = curve[0]
    for point in curve:
        if point[0] <= loss:
            share = 1.0 if before[0] <= loss else (before[0] - loss) / (before[0] - point[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]


def curves(lines: Sequence[dict[str, str]]) -> dict[tuple[str, int], list[Point]]:
    """Loss and cosine of each training along its steps; those that are not at their end are left out."""
    found: dict[tuple[str, int], list[Point]] = {}
    for line in sorted(lines, key=lambda one: int(one["step"])):
        point = (float(line["head_loss"]), float(line["mean_cosine"]))
        found.setdefault((line["arm"], int(line["seed"])), []).append(point)
    whole = max(map(len, found.values()))
    return {place: curve for place, curve in found.items() if len(curve) == whole}


def contrasts(found: dict[tuple[str, int], list[Point]]) -> list[dict[str, str]]:
    """Headless minus clm within seeds: at the last step, and at equal loss."""
    seeds = sorted(seed for arm, seed in found if arm == ARMS[1] and (ARMS[0], seed) in found)
    both = [(found[ARMS[0], seed], found[ARMS[1], seed]) for seed in seeds]
    equal = [matched(*pair) for pair in both]
    values = {
        "head loss at the last step": [(a[-1][0], b[-1][0]) for a, b in both],
        "average cosine at the last step": [(a[-1][1], b[-1][1]) for a, b in both],
        "average cosine at equal loss": [(a, b) for _, a, b in equal],
    }
    lines = []
    for name, pairs in values.items():
        change = [b - a for a, b in pairs]
        low, high = interval_over_draws(change)
        means = dict(zip(ARMS, np.mean(pairs, axis=0), strict=True))
        numbers = {**means, "difference": np.mean(change), "low": low, "high": high}
        numbers |= {"p": paired_p(change), "equivalent_within": equivalence_bound(change)}
        lines.append({"number": name, "seeds": str(len(pairs)), **{key: _word(x) for key, x in numbers.items()}})
    at = _word(np.mean([loss for loss, _, _ in equal]))
    return [*lines, {"number": "head loss where it is equal", "seeds": str(len(equal)), **dict.fromkeys(ARMS, at)}]


def _word(number: Any) -> str:
    return "" if number is None else f"{number:.4g}"


def main(grid: Path, docs: Path) -> None:
    torch.set_num_threads(1)
    found = curves(measure(grid, docs / "tables" / "objectives-matched.csv"))
    lines = contrasts(found)
    with (docs / "tables" / "objectives-contrasts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    draw(found, docs / "figures" / "objectives-matched.png")


def draw(found: dict[tuple[str, int], list[Point]], path: Path) -> None:
    from anisoscope.report.figures.style import colour, style, subplots

    with style():
        figure, axes = subplots(size=(4.2, 3))
        for (arm, seed), curve in found.items():
            look = {"color": colour(ARMS.index(arm)), "linewidth": 0.8, "alpha": 0.7}
            axes.plot(*zip(*curve, strict=True), **look, label=arm if seed == 0 else None)
            axes.plot(*curve[-1], marker="o", markersize=3, color=look["color"])
        axes.invert_xaxis()
        axes.set(
            xlabel="loss of a fitted head (nats per byte; better to the right)", ylabel="average cosine of the blocks"
        )
        axes.legend()
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
