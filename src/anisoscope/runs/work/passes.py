"""The one loop: batches go through the model, observers see them, their sums are saved on the way.

    run_pass(model, batches, {"hidden": HiddenSums(…), "attention": AttentionSums(…)}, saved=…)

An observer (`collected.Watching`) is a collection of sums that attaches itself to one forward pass. All observers see
the same pass. State is written every few seconds of work at a batch boundary; whoever continues starts at the next
window with the same batch size, so that a resumed pass ends with exactly the numbers of an uninterrupted one. (A
float32 forward pass depends on the shape of its batch in the seventh digit, so another batch size would not.)

Where memory runs out in a batch, the pass goes back to its last saved state and on with half the positions per batch.

Vectors that come from files need no model: `follow` is the same loop over blocks of rows.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from anisoscope.errors import ModelError
from anisoscope.runs.progress import track
from anisoscope.runs.stopping import asked_to_stop, patiently
from anisoscope.runs.work.collected import COUNTED
from anisoscope.runs.work.memory import Tidy
from anisoscope.runs.work.units import Unit, virtual_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anisoscope.models.batches.plan import Batch, Batches
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.work.saved import Saved

SAVE_EVERY = 10.0  # seconds of work between two savings, unless ANISOSCOPE_SAVE_EVERY says otherwise, and at least
_SAVING_SHARE = 0.02  # so little of the time may go into saving
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
Item = TypeVar("Item")


class OutOfMemory(ModelError):
    """Memory ran out in a batch of so many windows, cut for so many positions."""

    def __init__(self, windows: int, tokens: int) -> None:
        self.windows, self.tokens = windows, tokens
        super().__init__(
            "there is not enough memory to run the model on one window" if windows == 1 else "memory ran out",
            do="shorten the windows with --length, or choose --dtype bfloat16",
        )


def run_pass(
    model: OpenModel,
    batches: Batches,
    observers: Mapping[str, Any],
    *,
    unit: Unit,
    saved: Saved | None = None,
    what: str = "measuring",
) -> None:
    """Run the model over the batches of a unit; the observers hold the sums afterwards."""
    import torch

    ready, observing = False, {name: one for name, one in observers.items() if name != COUNTED}

    def forward(batch: Batch) -> None:
        nonlocal ready
        with torch.inference_mode():
            observe(model, batch, observing, first=not ready)
        ready = True

    run_batches(batches, forward, observers, unit=unit, saved=saved, what=what)


def observe(model: OpenModel, batch: Batch, observers: Mapping[str, Any], *, first: bool) -> None:
    """One forward pass that all observers see; before the first one they prepare themselves."""
    from anisoscope.capture.inputs import model_inputs

    with ExitStack() as watching:
        watching.enter_context(_uncompiled())
        if first:
            for observer in observers.values():
                observer.prepare(model, batch)
        options = {name: value for observer in observers.values() for name, value in observer.options.items()}
        for observer in observers.values():
            watching.enter_context(observer.watch(model, batch))
        output = model.module(**model_inputs(model.module, batch.inputs), **options)
        for observer in observers.values():
            observer.after(output)


def _uncompiled() -> AbstractContextManager[Any]:
    """Within this context a compiled model runs as it was written: what observes it is not for the compiler."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    import torch

    return torch.compiler.set_stance("force_eager")


def run_batches(
    batches: Batches,
    do: Callable[[Batch], None],
    sums: Mapping[str, Any],
    *,
    unit: Unit,
    saved: Saved | None = None,
    what: str = "measuring",
) -> None:
    """Do the batches of a unit, from where it stands; `do` adds a batch to the sums."""
    if saved is not None and saved.batch_tokens is not None:
        batches.batch_tokens = saved.batch_tokens
    elif saved is not None:
        saved.batch_tokens = batches.batch_tokens
    start = unit.start if saved is None else max(saved.done, unit.start)
    wanted = (lambda key: unit.wants(virtual_shard(key))) if unit.filters else None
    work = ((batch.resume_at, batch) for _, batch in batches.iterate(start, wanted))
    total = batches.expected

    def attempt(batch: Batch) -> None:
        try:
            do(batch)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
                raise OutOfMemory(len(batch), batches.batch_tokens) from error
            raise

    follow(work, attempt, sums, size=len, saved=saved, start=start, total=total, unit="windows", what=what)


def follow(
    work: Iterable[tuple[int, Item]],
    do: Callable[[Item], None],
    sums: Mapping[str, Any],
    *,
    size: Callable[[Any], int],
    saved: Saved | None,
    start: int,
    total: float | None,
    unit: str,
    what: str,
) -> None:
    """Do every piece of work, (the place in the plan after it, the piece), and save the sums now and then."""
    last, cost, every = time.monotonic(), 0.0, float(os.environ.get("ANISOSCOPE_SAVE_EVERY", SAVE_EVERY))
    with track(what, total=total, unit=unit) as bar, nullcontext() if saved is None else patiently():
        bar.skip(start)
        place, tidy = start, Tidy()
        for following, piece in work:
            do(piece)
            tidy()
            if COUNTED in sums:
                sums[COUNTED].parts["done"].n += size(piece)
            bar.advance(following - place)
            place, now = following, time.monotonic()
            if saved is not None:
                saved.done = place
                if now - last > max(every, cost / _SAVING_SHARE if every else 0):
                    saved.save(whole_state(sums))
                    last, cost = time.monotonic(), time.monotonic() - now
                if asked_to_stop():
                    saved.save(whole_state(sums))
                    raise asked_to_stop.error()


def whole_state(sums: Mapping[str, Any]) -> dict[str, NDArray]:
    """The state of all collections, `name|key|array`."""
    return {f"{name}|{key}": array for name, one in sums.items() for key, array in one.state().items()}


def load_whole(sums: Mapping[str, Any], state: Mapping[str, NDArray]) -> None:
    """Add what `whole_state` returned."""
    for name, one in sums.items():
        mine = {key.removeprefix(f"{name}|"): array for key, array in state.items() if key.startswith(f"{name}|")}
        if mine:
            one.load(mine)
