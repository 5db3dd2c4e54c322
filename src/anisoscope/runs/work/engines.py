"""Who takes which share of a pass, and how the sums come together.

`Local` is one process with all of it. `Torchrun` is one of several processes that `torchrun` started: each sums its
share, and the sums go to rank 0 site by site, so that never more than one site of every process is in memory. Ray is in
`ray_engine`. All use the same units of work and leave the same files behind.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.runs.work.collected import Part, merge_about


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


class Torchrun(Local):
    """One process of a `torchrun`."""

    def device(self, name: str) -> str:
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name

    def agreed(self, value: Any) -> Any:
        import torch.distributed as dist

        said = [value]
        with _others_alive():
            dist.broadcast_object_list(said, src=0)
        return said[0]

    def reduce(self, part: Part) -> Part:
        """The sums of all processes, in rank 0; in the others what they had."""
        about = self._gathered(part.about)
        for _name, collection in part.sums.items():
            keys = self.agreed(self._union(self._gathered(list(collection.parts))))
            for key in keys:
                mine = collection.parts.get(key)
                states = self._gathered(None if mine is None else mine.state())
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

    @staticmethod
    def _union(lists: list[list[str]]) -> list[str]:
        return list(dict.fromkeys(key for keys in lists for key in keys))


@contextmanager
def _others_alive() -> Iterator[None]:
    """What gloo says when a process is gone, in words."""
    try:
        yield
    except RuntimeError as error:
        raise RankFailed(
            "another process of this run failed",
            got=str(error).splitlines()[0],
            do="give the same command again: it continues, also with another number of processes",
        ) from error


@cache
def engine() -> Local:
    """The engine of this process: what its environment says."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return Local()
    import torch.distributed as dist

    if not dist.is_initialized():
        with _others_alive():  # a process that was refused may be gone before the last has come
            dist.init_process_group("gloo")
        atexit.register(_leave)
    return Torchrun(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    """End the threads of the process group: a process that leaves them running is aborted at its very end."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
