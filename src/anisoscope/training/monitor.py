"""Watch the geometry of a model while it trains: a fixed probe, measured now and then, logged through the Trainer.

    monitor = AnisotropyMonitor(texts, tokenizer, out="runs/watch", on_warning="stop")
    trainer = Trainer(model, args, train_dataset=…)
    monitor.attach(trainer)                        # TensorBoard, W&B, MLflow show anisotropy/block.3/mean_cosine …
    trainer.train()

    monitor.observe(model, step)                   # the same in a loop of your own

The probe is run in eval mode without gradients on the first process alone; the model's mode is restored, no random
number is drawn and no parameter is touched, so a training is the same with and without the monitor. Each observation is
also kept as rows with a `step`, in a run folder like any other.

The early warning. Both papers saw the average cosine of the last layer leave its level before the loss saturates
(Machina & Mercer 2024; Godey et al. 2024b, figure 3). The rule: with the last five observations as the band, the cosine
at the last site is above the band's mean by 0.1 and by four of its standard deviations, twice in a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from anisoscope.accumulate.keys import sequence_keys
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.masks import RowIndex
from anisoscope.errors import ModelError, UsageError
from anisoscope.inference.directions import direction_estimates
from anisoscope.models.batches import Batch
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.attention import AttentionSums, attention_rows

LOGGED = ("mean_cosine", "drift_ratio", "mean_norm")
LOGGED_OF_HEADS = ("query_key_cosine", "entropy_normalised")
OnWarning = Literal["warn", "stop"] | Callable[[str], None]


@dataclass(frozen=True)
class Band:
    """When a series of numbers leaves its level: the rule of this module, with its numbers."""

    window: int = 5
    margin: float = 0.1
    deviations: float = 4.0
    in_a_row: int = 2

    def left(self, values: Sequence[float]) -> bool:
        """Whether the last values lie above the band that the ones before them make.

        >>> Band().left([0.2, 0.21, 0.2, 0.19, 0.2, 0.5, 0.6]), Band().left([0.2, 0.21, 0.2, 0.19, 0.2, 0.22, 0.21])
        (True, False)
        """
        if len(values) < self.window + self.in_a_row:
            return False
        before = np.array(values[-self.window - self.in_a_row : -self.in_a_row])
        bar = before.mean() + max(self.margin, self.deviations * before.std(ddof=1))
        return all(value > bar for value in values[-self.in_a_row :])


class AnisotropyMonitor(TrainerCallback):
    """Measure a probe along training.

    - `probe`: texts (with their tokenizer), or a batch as the model takes it (`input_ids`, `attention_mask`, …).
    - `every` so many steps, or at `steps`: "log" (0, 1, 2, 4, 8, …) or a list.
    - `sites`: patterns of sites; `attention`: queries, keys and rows too.
    - `on_warning`: "warn", "stop" (the training), or a function of the message.
    """

    def __init__(
        self,
        probe: Sequence[str] | Mapping[str, Tensor],
        tokenizer: Any = None,
        *,
        every: int | None = None,
        steps: str | Iterable[int] = "log",
        sites: str | Iterable[str] = "*",
        attention: bool = True,
        length: int = 128,
        out: str | Path | None = None,
        band: Band | None = None,
        on_warning: OnWarning = "warn",
    ) -> None:
        if every is not None and every < 1:
            raise UsageError("`every` counts steps", got=every)
        self.batch = _batch_of(probe, tokenizer, length)
        self.every, self.steps = every, steps if isinstance(steps, str) else frozenset(steps)
        if isinstance(self.steps, str) and self.steps != "log":
            raise UsageError("unknown steps", got=self.steps, expected="'log' or a list of steps")
        self.sites, self.attention = sites, attention
        self.out, self.band, self.on_warning = None if out is None else Path(out), band or Band(), on_warning
        self.rows: list[Row] = []
        self.warned: list[str] = []
        self._trainer: Any = None

    def attach(self, trainer: Any) -> AnisotropyMonitor:
        """Add this callback to a Trainer and log through it."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def due(self, step: int) -> bool:
        """Whether this step is observed."""
        if self.every is not None:
            return step % self.every == 0
        if isinstance(self.steps, str):
            return step & (step - 1) == 0
        return step in self.steps

    def observe(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure the probe now; what is logged, by name. The rows are kept in `self.rows`."""
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                rows = self._measure(model, step)
        finally:
            model.train(was_training)
        self.rows += rows
        if self.out is not None:
            self.save(self.out)
        return {
            f"anisotropy/{row.site}/{row.metric}": row.value
            for row in rows
            if row.head is None and row.metric in (*LOGGED, *LOGGED_OF_HEADS) and row.value is not None
        }

    def _measure(self, model: nn.Module, step: int) -> list[Row]:
        capture = HiddenCapture(model, sites=self.sites)
        keys = sequence_keys(self.batch.keys)
        moments: dict[str, Moments] = {}

        def sink(site: str, vectors: Tensor, index: RowIndex) -> None:
            sums = moments.setdefault(site, Moments(vectors.shape[1], spectrum=False, reservoir=0))
            sums.update(vectors.cpu(), sequences=keys[index.row], positions=index.position, first=index.first)

        heads = AttentionSums(sample=0)
        device = next(model.parameters()).device
        with ExitStack() as stack:
            if self.attention:
                stack.enter_context(heads.watch(model, self.batch))
            stack.enter_context(capture.attached(self.batch, sink))
            model(**{name: tensor.to(device) for name, tensor in self.batch.inputs.items()})
        layers = {site.name: site.layer for site in capture.sites}
        protocol = f"probe of {len(self.batch)} sequences"
        rows = [
            Row(
                metric=e.metric, value=e.value, low=e.low, high=e.high, null=e.null, n=e.n, note=e.note, at=e.at,
                site=site, layer=layers[site], step=step, protocol=protocol,
            )
            for site, sums in moments.items()
            for e in direction_estimates(sums.sums())
        ]  # fmt: skip
        return rows + attention_rows(heads.heads, heads.rows, like=Row(step=step, protocol=protocol))

    def last_cosines(self) -> list[float]:
        """The average cosine at the last site, along the observations."""
        mine = [row for row in self.rows if row.metric == "mean_cosine" and row.head is None and row.layer is not None]
        last = mine[-1].site if mine else None
        return [row.value for row in mine if row.site == last and row.value is not None]

    def check(self) -> str | None:
        """The warning that is due after the last observation, if any."""
        values = self.last_cosines()
        if not self.band.left(values):
            return None
        return f"the average cosine at the last site left its band: {values[-1]:.3f} at step {self.rows[-1].step}"

    def save(self, folder: str | Path) -> Run:
        """Keep all observations as a run folder."""
        settings = {"every": self.every, "sites": self.sites if isinstance(self.sites, str) else list(self.sites)}
        return write_run(
            folder, command="monitor", settings=settings, rows=self.rows, notes=self.warned,
            protocol={"probe": f"{len(self.batch)} sequences", "mode": "eval, no gradients"},
        )  # fmt: skip

    # -- the Trainer calls these ------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._step(state, control, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step(state, control, kwargs["model"])

    def _step(self, state: Any, control: Any, model: nn.Module) -> None:
        if not state.is_world_process_zero or not self.due(state.global_step):
            return
        logged = self.observe(model, state.global_step)
        if self._trainer is not None:
            self._trainer.log(dict(logged))
        message = self.check()
        if message is None:
            return
        self.warned.append(message)
        if callable(self.on_warning):
            self.on_warning(message)
        else:
            warnings.warn(message, stacklevel=2)
        if self.on_warning == "stop":
            control.should_training_stop = True


def _batch_of(probe: Sequence[str] | Mapping[str, Tensor], tokenizer: Any, length: int) -> Batch:
    """The probe as one batch; every row is a sequence."""
    if isinstance(probe, Mapping):
        inputs = {name: tensor for name, tensor in probe.items() if name != "labels"}
    else:
        if tokenizer is None:
            raise UsageError("texts need their tokenizer", do="AnisotropyMonitor(texts, tokenizer)")
        inputs = dict(tokenizer(list(probe), padding=True, truncation=True, max_length=length, return_tensors="pt"))
    if not inputs:
        raise ModelError("the probe is empty")
    main = next(iter(inputs.values()))
    mask = inputs.get("attention_mask")
    valid = torch.ones(main.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    keys = [f"probe {row}" for row in range(len(main))]
    return Batch(inputs, keys, [0] * len(keys), valid, torch.zeros_like(valid))
