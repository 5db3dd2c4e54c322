"""Who takes which share of a pass, and how the sums come together.

`Local` is one process with all of it. `Torchrun` is one of several processes that `torchrun` started: each sums its
share, and the sums go to rank 0 site by site, so that never more than one site of every process is in memory. What no
process can share, such as a training, they take by turns (`each`). Ray is in `ray_engine`. All use the same units of
work and leave the same files behind.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

from anisoscope.errors import AnisoscopeError, UsageError
from anisoscope.runs.work.collected import Part, merge_about

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # how libraries know of other processes
_LONGEST = timedelta(days=30)  # that one process waits for a training of another
_JOINED = count()


class RankFailed(AnisoscopeError):
    """A process of a distributed run failed; the state of the others is kept."""


@dataclass(frozen=True)
class Local:
    """One process. `rank` and `world` are those of a Ray worker where there is one."""

    rank: int = 0
    world: int = 1

    @property
    def chief(self) -> bool:
        """Whether this process writes the run."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Where this process runs its model: `cuda` is the accelerator of its own."""
        return name

    def reduce(self, part: Part) -> Part:
        return part

    def agreed(self, value: Any) -> Any:
        """What the chief says, in every process."""
        return value

    def each(self, labels: Sequence[str], do: Callable[[str], Part], make: Callable[[], Any]) -> dict[str, Part]:
        """The part of every label, each done by one process on its own; all of them in the chief."""
        return {label: do(label) for label in labels}


@dataclass(frozen=True)
class Torchrun(Local):
    """One process of a `torchrun`; `store` is where its processes find each other, unless others joined them."""

    store: Any = None

    def join(self, timeout: timedelta | None = None) -> None:
        """Begin to exchange sums with the others, once all of them are here."""
        import torch.distributed as dist

        own = dist.PrefixStore(f"sums {next(_JOINED)}", self.store)  # pyright: ignore[reportPrivateImportUsage]  # documented
        with _others_alive():
            dist.init_process_group("gloo", store=own, rank=self.rank, world_size=self.world, timeout=timeout)

    def device(self, name: str) -> str:
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name

    def agreed(self, value: Any) -> Any:
        import torch.distributed as dist

        said = [value]
        with _others_alive():
            dist.broadcast_object_list(said, src=0)
        return said[0]

    def each(self, labels: Sequence[str], do: Callable[[str], Part], make: Callable[[], Any]) -> dict[str, Part]:
        if self.store is None:
            raise UsageError("this program joined its processes itself", do="torchrun -m anisoscope, or --engine ray")
        with _alone():
            mine = {label: do(label) for label in labels[self.rank :: self.world]}
        self.store.set_timeout(_LONGEST)
        self.join(_LONGEST)
        return {label: self.reduce(mine[label] if label in mine else Part(make())) for label in labels}

    def reduce(self, part: Part) -> Part:
        """The sums of all processes, in rank 0; in the others what they had."""
        about = self._gathered(part.about)
        for collection in part.sums.values():
            held = self._gathered(list(collection.parts))
            for key in self.agreed(list(dict.fromkeys(key for keys in held for key in keys))):
                states = self._gathered(collection.state_of(key) if key in collection.parts else None)
                for state in states[1:]:
                    if state is not None:
                        collection.add(key, collection.read(key, state))
        for other in about[1:]:
            part.about = merge_about(part.about, other)
        return part

    def _gathered(self, value: Any) -> list[Any]:
        """What every process has, in rank 0; an empty list elsewhere."""
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.world if self.chief else None
        with _others_alive():
            dist.gather_object(value, found, dst=0)
        return found or []


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, no library takes the other processes for helpers; they have to be joined again afterwards."""
    _leave()
    hidden = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _others_alive() -> Iterator[None]:
    """What gloo says when a process is gone, in words."""
    try:
        yield
    except RuntimeError as error:
        raise RankFailed(
            "another process of this run failed",
            got=str(error).splitlines()[0],
            do="give the same command again: it continues, even with another number of processes",
        ) from error


def launched() -> bool:
    """Whether `torchrun` started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "TORCHELASTIC_RUN_ID" in os.environ


@cache
def engine() -> Local:
    """The engine of this process: what its environment says."""
    if not launched():
        return Local()
    import torch.distributed as dist

    if dist.is_initialized():
        return Torchrun(dist.get_rank(), dist.get_world_size())
    with _others_alive():  # a process that was refused may be gone before the last has come
        store, rank, world = next(dist.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]  # documented
    found = Torchrun(rank, world, store)
    found.join()
    atexit.register(_leave)
    return found


def _leave() -> None:
    """End the threads of the process group: a process that leaves them running is aborted at its very end."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
