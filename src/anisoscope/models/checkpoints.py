"""A series: the checkpoints of one training, in order, wherever they are.

| named by | is |
|---|---|
| `multiberts`, `EleutherAI/pythia-70m`, … | a published series: the repository or the revision varies |
| a folder | `checkpoint-*` in it, or `seed-*/checkpoint-*` (what `anisoscope pretrain` and the Trainer write) |
| a glob | every folder that matches; the step (and the seed) is read off its name |
| a TOML file | a list of `[[checkpoints]]` with `step`, `model`, and if need be `revision`, `seed` |

Which of its steps: `all`, `paper`, `log` (each at least twice the one before), a count (`21`: that many, evenly over
the training) or a list (`0,1000,2000`). A step that is not there is listed in `missing`, and the series is used without
it.

Published series hold mistakes: the same weights under two steps, a checkpoint in the wrong place. `fingerprint` and
`suspicious` find them from a hash and from a sketch of the weights (some thousand fixed entries), which keeps distances
between checkpoints to a few per cent at no cost.

>>> choose_steps([0, 1, 2, 4, 8, 1000, 2000, 3000], "log"), choose_steps(range(0, 101, 10), "3")
([0, 1, 2, 4, 8, 1000, 2000, 3000], [0, 50, 100])
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import read_toml
from anisoscope.models.catalogue import Checkpoint, series

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

SKETCH = 4096  # entries of all weights together
NEARLY_EQUAL = 1e-6  # relative distance: even a step of warm-up moves the weights more
NEARER = 0.5  # of the distance to the neighbours: so near, a checkpoint elsewhere in the series is its true neighbour
_STEP = re.compile(r"(?:checkpoint|ckpt|step)[-_]?(\d+)(k?)$", re.IGNORECASE)
_SEED = re.compile(r"seed[-_]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Series:
    """Checkpoints by seed and step. `missing`: what was asked for and is not there, in words."""

    name: str
    checkpoints: tuple[Checkpoint, ...]
    missing: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(dict.fromkeys(checkpoint.seed for checkpoint in self.checkpoints))


def open_series(where: str | Path, *, steps: str = "all", seeds: Sequence[int] | None = None) -> Series:
    """Find the series that `where` names. `seeds`: those to take (default: 0 of the MultiBERTs, else all)."""
    text = str(where)
    if Path(text).is_dir():
        found = _in_folder(Path(text))
    elif text.endswith(".toml"):
        return _selected(*_in_toml(Path(text)), steps, seeds)
    elif any(mark in text for mark in "*?["):
        found = _matching(text)
    elif text.startswith(("/", ".", "~")):
        raise UsageError("there is no such folder", where=text, do="put globs in quotes")
    else:
        return _published(text, steps, seeds)
    return _selected(Path(text).resolve().name if Path(text).is_dir() else text, found, steps, seeds)


def describe(checkpoint: Checkpoint) -> str:
    """`step 64`, `step 64 of seed 1`."""
    return f"step {checkpoint.step}" + ("" if checkpoint.seed is None else f" of seed {checkpoint.seed}")


# -- checkpoints named one by one --------------------------------------------------------------------------------------


def steps_of(names: Sequence[str]) -> list[int | None]:
    """The step of each checkpoint of a list whose names differ only in their step; of other models it is missing.

    >>> steps_of(["EleutherAI/pythia-70m@step0", "EleutherAI/pythia-70m@step1000"])
    [0, 1000]
    >>> steps_of(["first", "second"]), steps_of(["checkpoint-500"]), steps_of(["a/checkpoint-1", "b/checkpoint-2"])
    ([None, None], [None], [None, None])
    """
    read = [step_in(name) for name in names]
    stems = {re.sub(rf"{_STEP.pattern[:-1]}(?=[/@.]|$)", "", name, flags=re.IGNORECASE) for name in names}
    series = None not in read and 1 < len(names) == len(set(read)) and len(stems) == 1
    return read if series else [None] * len(names)


def step_in(name: str) -> int | None:
    """The training step at the end of a name, or of the last of its folders that has one.

    >>> step_in("google/multiberts-seed_0-step_20k"), step_in("runs/checkpoint-500/model"), step_in("gpt2")
    (20000, 500, None)
    """
    for part in reversed(re.split(r"[/@]", name)):
        written = _STEP.search(part.removesuffix(".gguf"))
        if written is not None:
            return int(written[1]) * (1000 if written[2] else 1)
    return None


def split_revision(name: str) -> tuple[str, str | None]:
    """The name and the revision of `name@revision`; a path that exists is left as it is.

    >>> split_revision("EleutherAI/pythia-70m@step1000"), split_revision("gpt2")
    (('EleutherAI/pythia-70m', 'step1000'), ('gpt2', None))
    """
    where, mark, revision = name.rpartition("@")
    return (where, revision) if mark and where and not os.path.exists(name) else (name, None)


# -- where checkpoints are ---------------------------------------------------------------------------------------------


def _in_folder(folder: Path) -> list[Checkpoint]:
    found = [path for pattern in ("checkpoint-*", "seed-*/checkpoint-*") for path in folder.glob(pattern)]
    checkpoints = [_of_path(path, within=folder) for path in found if path.is_dir() and _STEP.search(path.name)]
    if not checkpoints:
        raise InputError(
            "no checkpoint found", where=folder, expected="folders like checkpoint-1000 or seed-0/checkpoint-1000"
        )
    return checkpoints


def _matching(pattern: str) -> list[Checkpoint]:
    found = [Path(path) for path in glob(str(Path(os.path.expanduser(pattern))), recursive=True) if Path(path).is_dir()]
    if not found:
        raise InputError("no folder matches", where=pattern)
    return [_of_path(path, within=Path()) for path in found]


def _of_path(path: Path, *, within: Path) -> Checkpoint:
    """Step and seed off the name: `seed-1/checkpoint-64`, `multiberts-seed_0-step_20k`."""
    step = step_in(path.name)
    if step is None:
        raise UsageError(
            "no step in the name of this folder", where=path, expected="…checkpoint-64, …step64, …step_20k"
        )
    inside = path.relative_to(within) if path.is_relative_to(within) else path
    seed = _SEED.search(inside.as_posix())
    return Checkpoint(step, str(path.resolve()), seed=int(seed[1]) if seed else None)


def _in_toml(path: Path) -> tuple[str, list[Checkpoint]]:
    written = read_toml(path)
    try:
        entries = written["checkpoints"]
        found = [Checkpoint(**{**entry, "model": _beside(path, entry["model"])}) for entry in entries]
    except (KeyError, TypeError) as error:
        raise UsageError(
            "this is not a list of checkpoints",
            where=path,
            got=error,
            expected="[[checkpoints]] tables with step, model, and if need be revision, seed",
        ) from error
    if not found:
        raise InputError("the list of checkpoints is empty", where=path)
    return str(written.get("name", path.stem)), found


def _beside(path: Path, model: str) -> str:
    """A folder relative to the list that names it; anything else is a model's name."""
    folder = path.parent / Path(os.path.expanduser(model))
    return str(folder.resolve()) if folder.exists() else model


def _published(name: str, steps: str, seeds: Sequence[int] | None) -> Series:
    chosen = parse_steps(steps)
    grid: str | list[int] = chosen if isinstance(chosen, list) or chosen == "paper" else "all"  # pyright: ignore
    found = series(name, seeds=(0,) if seeds is None else seeds, steps=grid)
    return _selected(name, found, steps if grid == "all" else "all", seeds)


def _selected(name: str, found: Iterable[Checkpoint], steps: str, seeds: Sequence[int] | None) -> Series:
    """The checkpoints of the seeds and steps that were asked for, and what of them is not there."""
    by_place: dict[tuple[int, int], Checkpoint] = {}
    for checkpoint in found:
        place = (-1 if checkpoint.seed is None else checkpoint.seed, checkpoint.step)
        if place in by_place:
            models = f"{by_place[place].model}, {checkpoint.model}"
            raise UsageError(f"two checkpoints for {describe(checkpoint)}", where=name, got=models)
        by_place[place] = checkpoint
    present = sorted({seed for seed, _ in by_place})
    if seeds is not None and present == [-1]:
        raise UsageError("this series has no seeds", where=name, got=f"seeds {list(seeds)}", do="leave out the seeds")
    wanted = present if seeds is None else sorted(set(seeds))
    chosen = choose_steps(sorted({step for seed, step in by_place if seed in wanted}), steps)
    places = [(seed, step) for seed in wanted for step in chosen]
    absent = [
        Checkpoint(step, "", seed=None if seed < 0 else seed) for seed, step in places if (seed, step) not in by_place
    ]
    kept = tuple(by_place[place] for place in places if place in by_place)
    if not kept:
        raise InputError(
            "none of these checkpoints is there", where=name, got=", ".join(map(describe, absent)) or steps
        )
    return Series(name, kept, tuple(f"{describe(checkpoint)}: no such checkpoint" for checkpoint in absent))


# -- which of them -----------------------------------------------------------------------------------------------------


def parse_steps(steps: str) -> str | int | list[int]:
    """`all`, `paper`, `log`; a count; or a list, which has a comma (`1000,` is the list of one step)."""
    text = steps.strip().lower()
    if text in ("all", "paper", "log"):
        return text
    parts = [part.strip().replace("_", "") for part in text.split(",") if part.strip()]
    if parts and all(re.fullmatch(r"\d+k?", part) for part in parts):
        numbers = [int(part.removesuffix("k")) * (1000 if part.endswith("k") else 1) for part in parts]
        if "," in text:
            return sorted(set(numbers))
        if numbers[0] >= 2:
            return numbers[0]
    raise UsageError(
        "unknown choice of steps", got=steps, expected="all | paper | log | a count such as 21 | 0,1000,2k"
    )


def choose_steps(grid: Sequence[int], steps: str) -> list[int]:
    """The chosen steps of a grid. A list is taken as it stands, whether the grid has them or not.

    A count takes the last step at or before each of that many equal parts of the training; for Pythia, 21 gives those
    of Machina & Mercer.
    """
    wanted, grid = parse_steps(steps), sorted(grid)
    if isinstance(wanted, list):
        return wanted
    if not grid or wanted in ("all", "paper"):
        return grid
    if wanted == "log":
        chosen: list[int] = []
        for step in grid:
            if not chosen or step >= 2 * chosen[-1]:
                chosen.append(step)
        return list(dict.fromkeys([*chosen, grid[-1]]))
    parts = int(wanted) - 1
    bounds = [grid[0] + (grid[-1] - grid[0]) * part // parts for part in range(parts + 1)]
    return list(dict.fromkeys(max(step for step in grid if step <= bound) for bound in bounds))


# -- are they what they claim to be? -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """The hash of all weights, and some of their entries, the same of every checkpoint."""

    sha256: str
    sketch: NDArray[np.float32]


def fingerprint(module: nn.Module) -> Weights:
    """Hash and sketch of a module's weights: evenly spaced entries of each, more of the larger ones."""
    import numpy as np

    from anisoscope.models.fingerprint import module_fingerprint

    weights = {name: weight for name, weight in sorted(module.state_dict().items()) if weight.is_floating_point()}
    stride = max(1, sum(weight.numel() for weight in weights.values()) // SKETCH)
    entries = [weight.detach().flatten()[::stride].float().cpu().numpy() for weight in weights.values()]
    return Weights(module_fingerprint(module), np.concatenate(entries) if entries else np.zeros(0, np.float32))


def suspicious(found: Sequence[tuple[Checkpoint, Weights]]) -> list[str]:
    """What looks wrong in a series, in words: equal weights anywhere, nearly equal neighbours, a wrong place."""
    by_hash: dict[str, list[Checkpoint]] = {}
    for checkpoint, weights in found:
        by_hash.setdefault(weights.sha256, []).append(checkpoint)
    alarms = [
        f"{' and '.join(map(describe, same))} have equal weights: one of them is not what it claims to be"
        for same in by_hash.values()
        if len(same) > 1
    ]
    for seed in dict.fromkeys(checkpoint.seed for checkpoint, _ in found):
        mine = [pair for pair in found if pair[0].seed == seed and len(by_hash[pair[1].sha256]) == 1]
        alarms += _strange(sorted(mine, key=lambda pair: pair[0].step))
    return alarms


def _strange(ordered: Sequence[tuple[Checkpoint, Weights]]) -> list[str]:
    """Of one seed, in order of steps: another size, hardly a change, nearer to others than to the neighbours."""
    import numpy as np

    sizes = [len(weights.sketch) for _, weights in ordered]
    usual = max(set(sizes), key=sizes.count, default=0)
    alarms = [f"{describe(c)} has weights of another shape" for c, w in ordered if len(w.sketch) != usual]
    kept = [
        (checkpoint, weights.sketch.astype(np.float64))
        for checkpoint, weights in ordered
        if len(weights.sketch) == usual
    ]
    if len(kept) < 2:
        return alarms
    points = np.stack([sketch for _, sketch in kept])
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)  # (steps, steps)
    length = np.linalg.norm(points, axis=-1)
    for i in range(len(kept) - 1):
        if distance[i, i + 1] < NEARLY_EQUAL * length[i]:
            alarms.append(f"{describe(kept[i][0])} and {describe(kept[i + 1][0])} have nearly equal weights")
    for i, (checkpoint, _) in enumerate(kept):
        beside = [j for j in (i - 1, i + 1) if 0 <= j < len(kept)]
        others = [j for j in range(len(kept)) if abs(j - i) > 1]
        nearest = min(others, key=lambda j: distance[i, j], default=None)
        if nearest is not None and distance[i, nearest] < NEARER * min(distance[i, j] for j in beside):
            alarms.append(
                f"{describe(checkpoint)} is much nearer to {describe(kept[nearest][0])} than to its neighbours: "
                "its place in the series is doubtful"
            )
    return alarms
