"""The pass over a model: batches go in, every site's vectors go into its moments, nothing else is kept.

A pass can be killed and continued. Its state (the sums of every site, the number of windows done, the batch size) is
written every few seconds of work at a batch boundary; whoever continues goes on with the next window and the same batch
size, so that a resumed pass ends with the very numbers of an uninterrupted one. (A float32 forward pass depends on the
shape of its batch in the seventh digit, so another batch size would not.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.accumulate.keys import sequence_key
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.sites import map_sites
from anisoscope.errors import StoreError
from anisoscope.runs.progress import track
from anisoscope.runs.store import atomic

if TYPE_CHECKING:
    import torch

    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.capture.masks import RowIndex
    from anisoscope.models.batches.plan import Batch, Batches

SAVE_EVERY = 10.0  # seconds of work between two savings, and at least
_SAVING_SHARE = 0.05  # so little of the time may go into saving


@dataclass(frozen=True)
class SumSettings:
    """What is summed at each site."""

    spectrum: bool = True
    sample: int = 4096
    seed: int = 0
    device: str = "cpu"


class SiteMoments:
    """The moments of every site of a model, made as the sites show up; its `take` is the sink of a capture."""

    def __init__(self, settings: SumSettings, moments: dict[str, Moments] | None = None) -> None:
        self.settings = settings
        self.by_site: dict[str, Moments] = moments or {}
        self._keys = np.zeros(0, dtype=np.uint64)
        self._starts = np.zeros(0, dtype=np.int64)

    def begin(self, batch: Batch) -> None:
        """Tell which sequences the rows of the next states belong to."""
        self._keys = np.array([sequence_key(key) for key in batch.keys], dtype=np.uint64)
        self._starts = np.array(batch.starts, dtype=np.int64)

    def take(self, site: str, vectors: torch.Tensor, rows: RowIndex) -> None:
        if site not in self.by_site:
            wanted = self.settings
            self.by_site[site] = Moments(
                vectors.shape[1], spectrum=wanted.spectrum, reservoir=wanted.sample, seed=wanted.seed,
                device=wanted.device,
            )  # fmt: skip
        self.by_site[site].update(
            vectors,
            sequences=self._keys[rows.row],
            positions=self._starts[rows.row] + rows.position,
            first=rows.first,
        )


@dataclass
class Pass:
    """Where a pass stands: windows done and the sums so far, kept in `folder` (nowhere, without one)."""

    folder: Path | None
    batch_tokens: int
    data: str
    done: int = 0
    moments: dict[str, Moments] = field(default_factory=dict)

    @classmethod
    def resume(cls, folder: Path | None, *, batch_tokens: int, data: str) -> Pass:
        """The state that a killed pass left in the folder, or a fresh one."""
        if folder is None or not (folder / "pass.json").exists():
            return cls(folder, batch_tokens, data)
        try:
            from safetensors.torch import load_file

            header = json.loads((folder / "pass.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / header["state"])
            moments = {site: Moments.from_state(part) for site, part in split_states(tensors).items()}
        except Exception as error:  # damaged in any way: say so and lose nothing but time
            raise StoreError(
                "the state of the unfinished run is damaged", where=folder, got=error, do="--existing replace"
            ) from error
        if header["data"] != data:
            raise StoreError(
                "the data changed since this run was interrupted", where=folder, got=data[:12],
                expected=header["data"][:12], do="--existing replace to start anew",
            )  # fmt: skip
        return cls(folder, header["batch_tokens"], data, header["done"], moments)

    def save(self) -> None:
        """Write the sums, then the header that names them; the former sums go last."""
        if self.folder is None:
            return
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"state-{self.done}.safetensors"
            with atomic(self.folder / name) as path:
                save_file(join_states(self.moments), path)
            header = {"state": name, "done": self.done, "batch_tokens": self.batch_tokens, "data": self.data}
            with atomic(self.folder / "pass.json") as path:
                path.write_text(json.dumps(header), encoding="utf-8")
            for old in self.folder.glob("state-*.safetensors"):
                if old.name != name:
                    old.unlink()
        except (OSError, SafetensorError) as error:  # the second is how a full disk shows there
            raise StoreError(
                "the state of the run could not be saved", where=self.folder, got=error,
                do="free some space and give the same command again: it continues",
            ) from error  # fmt: skip


def run_pass(
    capture: HiddenCapture,
    batches: Batches,
    settings: SumSettings,
    *,
    folder: Path | None = None,
    data: str = "",
    what: str = "measuring",
) -> dict[str, Moments]:
    """Run the model over all batches; the moments of every site, in order of computation."""
    state = Pass.resume(folder, batch_tokens=batches.batch_tokens, data=data)
    if state.done >= batches.total and not map_sites(capture.module).known:
        state = Pass(folder, batches.batch_tokens, data)  # only a batch can tell the sites of an unknown architecture
    batches.batch_tokens = state.batch_tokens
    sites = SiteMoments(settings, state.moments)
    saved, cost = time.monotonic(), 0.0
    with track(what, total=batches.total, unit="windows") as bar:
        bar.advance(state.done)
        for index, batch in batches.iterate(start_at=state.done):
            sites.begin(batch)
            capture.run(batch, sites.take)
            state.moments, state.done = sites.by_site, index + len(batch)
            bar.advance(len(batch))
            now = time.monotonic()
            if folder is not None and now - saved > max(SAVE_EVERY, cost / _SAVING_SHARE):
                state.save()
                saved, cost = time.monotonic(), time.monotonic() - now
    for moments in sites.by_site.values():
        moments.seal()  # all windows were seen
    state.save()  # whatever ends the run from here on (the metrics, the next model), this pass need not be made again
    order = [site.name for site in capture.sites]
    return {name: sites.by_site[name] for name in order if name in sites.by_site}


def join_states(moments: Mapping[str, Moments]) -> dict[str, torch.Tensor]:
    """The states of many sites as one flat dict, `site|tensor`."""
    return {f"{site}|{name}": tensor for site, m in moments.items() for name, tensor in m.state().items()}


def split_states(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """The inverse of `join_states`, still as tensors."""
    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        site, _, inner = name.rpartition("|")
        parts.setdefault(site, {})[inner] = tensor
    return parts
