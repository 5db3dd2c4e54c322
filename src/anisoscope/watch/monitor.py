"""Watch the geometry of a model while it trains: a fixed probe, measured now and then, logged through the Trainer.

    monitor = AnisotropyMonitor(texts, tokenizer, out="runs/watch", on_warning="stop")
    trainer = Trainer(model, args, train_dataset=…)
    monitor.attach(trainer)                        # TensorBoard, W&B, MLflow show anisotropy/block.3/mean_cosine …
    trainer.train()

    monitor.observe(model, step)                   # the same in a loop of your own; `monitor.due(step)` is the cadence

Observing changes nothing: a training has the same weights, bit for bit, with and without it (see `probe`). The numbers
are those of `anisoscope sweep` on checkpoints of the same steps, and the run folder is read like that of a sweep.

Several processes. Each runs the whole probe, so that weights that are sharded come together and nobody waits for longer
than the probe takes; the first alone makes rows, writes, logs and warns. It also tells the others whether to stop,
since a training hangs when one process leaves it: with `on_warning="stop"`, call `observe` in every process.

The early warning. Small models were seen to turn anisotropic in their last layer abruptly, as their loss saturates
(Machina & Mercer, NAACL 2024; Godey et al., arXiv:2404.07647, figure 3). The rules are data (`inference.thresholds`):
states that are NaN or infinite, an average cosine, an effective rank, collapsed attention, logits or activations that
leave their band. `rules` replaces them; `watch.rules.alarms_of` applies them to a training that is over.

What is kept. `measurements.parquet` has the rows of all observations. The sums of queries and keys stay in `sums/`, one
file per step, thinned to steps that double (a few dozen in any training), for the planes of figures 11 and 12. The
folder is written anew where that takes at most a hundredth of the time since the last writing, when the Trainer saves,
and at the end; if it cannot be written, that is a warning and the training continues. A training that continues from a
checkpoint continues with the folder.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import distributed, nn
from transformers import TrainerCallback

from anisoscope.errors import StoreError, UsageError
from anisoscope.inference.thresholds import RULES, Band, Rule
from anisoscope.models.checkpoints import choose_steps
from anisoscope.runs.store import Existing, Run, begin, find_existing, remove_run, write_run
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import StoredPart
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.runs.writing import atomic
from anisoscope.studies.sweep.dynamics import series_arrays
from anisoscope.studies.sweep.story import training_verdict
from anisoscope.watch.probe import Probe, ProbeSums
from anisoscope.watch.rules import Alarm, Lookout

LOGGED = (
    *("mean_cosine", "drift_ratio", "mean_norm", "query_key_cosine", "entropy_normalised"),
    *("effective_rank", "kurtosis", "massive_activation_ratio", "max_logit", "entropy_collapse"),
    *("logsumexp", "prediction_entropy", "loss", "head_gradient_share"),
)
LOG_UNTIL = 1024
OnWarning = Literal["warn", "stop"] | Callable[[str], None]
COMMAND = "sweep"  # the folder is read, shown and drawn like that of a sweep
IN_MEMORY = ("probe",)  # so no file can repeat it
_SAVING_SHARE = 0.01


class AnisotropyMonitor(TrainerCallback):
    """Measure a probe along training.

    - `probe`: texts, files, clips or pictures (what `measure` takes as data), read by `processor`; or one batch as the
      model takes it (`input_ids`, `attention_mask`, …), whose rows are the sequences.
    - `sites`, `length`, `limit`: as in `measure` (windows of 128 tokens, all documents); `attention=False` leaves
      out queries, keys and rows (models without attention need this); `logits=False` leaves out a language-model head.
    - `pool`: mean, cls, last, max or weighted: also measure the pooled vector of each text, the site `embedding`.
    - `every` n steps, or at `steps`: "log" (0, 1, 2, 4, …, 1024, then every 1024) or a list.
    - `out`: keep a run there; `existing="replace"` removes what an earlier training left, "resume" continues it.
    - `rules`: when to warn (`inference.thresholds.RULES`); `band`: another band for the rule of drift.
    - `on_warning`: "warn", "stop" (the training), or a function of the message.

    `rows`, `alarms` and `warned` (their sentences) hold what was seen, `should_stop` tells your own loop to end.
    """

    def __init__(
        self,
        probe: Any,
        processor: Any = None,
        *,
        every: int | None = None,
        steps: str | Iterable[int] = "log",
        sites: str | Iterable[str] = "*",
        attention: bool = True,
        logits: bool = True,
        length: int | None = None,
        limit: int | None = None,
        pool: str | None = None,
        out: str | Path | None = None,
        existing: Existing = "resume",
        band: Band | None = None,
        rules: Sequence[Rule] = RULES,
        on_warning: OnWarning = "warn",
    ) -> None:
        if every is not None and every < 1:
            raise UsageError("`every` counts steps", got=every)
        looked = {"sites": sites, "attention": attention, "logits": logits, "pool": pool}
        self.probe = Probe(probe, processor, length=length, limit=limit, **looked)
        self.every, self.steps = every, steps if isinstance(steps, str) else frozenset(steps)
        if isinstance(self.steps, str) and self.steps != "log":
            raise UsageError("unknown steps", got=self.steps, expected="'log' or a list of steps")
        self.out = None if out is None else Path(out)
        self.existing: Existing = existing
        self.rules, self.on_warning = tuple(rules), on_warning
        if band is not None:
            self.rules = tuple(replace(rule, band=band) if rule.name == "drift" else rule for rule in rules)
        self.rows: list[Row] = []
        self.warned: list[str] = []
        self.alarms: list[Alarm] = []
        self._lookout = Lookout(self.rules)
        self.should_stop = False
        self._trainer: Any = None
        self._begun = False  # once per training, also if nothing could be written
        self._seconds = 0.0  # spent on observing
        self._written: tuple[float, float] | None = None  # when the folder was written, and how long that took
        self._unwritten = False

    def attach(self, trainer: Any) -> AnisotropyMonitor:
        """Add this callback to a Trainer and log through it. (A Trainer does not pass itself to its callbacks.)"""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def due(self, step: int) -> bool:
        """Whether this step is observed."""
        if self.every is not None:
            return step % self.every == 0
        if isinstance(self.steps, str):
            return step % LOG_UNTIL == 0 if step > LOG_UNTIL else step & (step - 1) == 0
        return step in self.steps

    def observe(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure the probe now, keep the rows, and warn if a rule says so. Returns what to log, by name.

        Only the first process has something to log.
        """
        started = time.monotonic()
        sums = self.probe.run(model)
        if not is_first_process():
            self._agree()
            return {}
        rows = sums.as_rows(step=step)
        self._begin()
        self._forget(step)
        self.rows += rows
        for alarm in self._lookout.see(rows):
            self._warn(alarm)
        self._seconds += time.monotonic() - started
        if self.out is not None:
            with _told_not_raised():
                self._keep(self.out, sums, step)
        self._agree()
        return {
            f"anisotropy/{row.site}/{row.metric}": row.value
            for row in rows
            if row.head is None and row.metric in LOGGED and row.value is not None
        }

    # -- the early warning -------------------------------------------------------------------------------------------

    def _warn(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        self.warned.append(alarm.message)
        if callable(self.on_warning):
            self.on_warning(alarm.message)
            return
        warnings.warn(alarm.message, stacklevel=3)
        self.should_stop = self.should_stop or self.on_warning == "stop"

    def _agree(self) -> None:
        """What the first process decided holds for all."""
        if self.on_warning == "stop" and distributed.is_available() and distributed.is_initialized():
            told = [self.should_stop]
            distributed.broadcast_object_list(told, src=0)
            self.should_stop = told[0]

    # -- the run folder ----------------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        grid = self.steps if isinstance(self.steps, str) else sorted(self.steps)
        return {"steps": grid if self.every is None else None, "every": self.every, **self.probe.settings}

    def _begin(self) -> None:
        """Before the first observation: take over what this training saw before, and refuse any other folder."""
        if self._begun or self.out is None:
            return
        kept = find_existing(self.out, command=COMMAND, settings=self.settings, existing=self.existing)
        self._begun = True
        if self.existing == "replace":
            remove_run(self.out)
        with _told_not_raised():
            begin(self.out, command=COMMAND, settings=self.settings, in_memory=IN_MEMORY)
        if kept is not None:
            self.rows, self.warned = kept.rows(), list(kept.manifest["notes"])
            self._look_again()
            self._seconds = kept.manifest["seconds"] or 0.0

    def _forget(self, step: int) -> None:
        """What was seen from this step on, by a training that was then set back, is seen anew."""
        if self.rows and (self.rows[-1].step or 0) >= step:
            self.rows = [row for row in self.rows if row.step is not None and row.step < step]
            self._look_again()
            self.warned = [alarm.message for alarm in self.alarms]
        for file in self._files():
            if _step_of(file) >= step:
                file.unlink()

    def _look_again(self) -> None:
        """Show the rules all rows again, from the first on; the alarms that they raise were announced before."""
        self._lookout = Lookout(self.rules)
        self.alarms = [
            alarm for _, some in groupby(self.rows, key=lambda r: r.step) for alarm in self._lookout.see(some)
        ]

    def _keep(self, folder: Path, sums: ProbeSums, step: int) -> None:
        self._unwritten = True
        heads = {key: part for key, part in sums.attention.parts.items() if key.endswith("/heads")}
        state = {f"attention|{key}|{name}": one for key, part in heads.items() for name, one in part.state().items()}
        if state and all(np.isfinite(array).all() for array in state.values()):
            from safetensors.numpy import save_file

            (folder / "sums").mkdir(parents=True, exist_ok=True)
            with atomic(folder / "sums" / f"step-{step}.safetensors") as path:
                save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, path)
            files = {_step_of(file): file for file in self._files()}
            for thinned in files.keys() - set(choose_steps(sorted(files), "log")):
                files[thinned].unlink()
        if self._written is None or time.monotonic() - self._written[0] > self._written[1] / _SAVING_SHARE:
            self.save()

    def _files(self) -> list[Path]:
        """The sums of queries and keys, in order of steps."""
        return [] if self.out is None else sorted((self.out / "sums").glob("step-*.safetensors"), key=_step_of)

    def save(self) -> Run | None:
        """Write the run folder with all observations so far; None where there is none, or nothing new."""
        if self.out is None or not self._unwritten:
            return None
        started = time.monotonic()
        source = self.probe.source
        run = write_run(
            self.out,
            command=COMMAND,
            settings=self.settings,
            rows=self.rows,
            arrays=self._arrays(),
            seconds=self._seconds,
            in_memory=IN_MEMORY,
            data={} if source is None else {"name": source.name, "fingerprint": source.fingerprint()},
            protocol={"probe": self.rows[-1].protocol, "mode": "eval, no gradients, no autocast"},
            model={"series": self.out.name, "watched by": type(self).__name__},
            notes=self.warned,
            verdict=training_verdict(self.rows),
        )
        self._written, self._unwritten = (time.monotonic(), time.monotonic() - started), False
        return run

    def _arrays(self) -> dict[str, np.ndarray]:
        """The planes of queries and keys over the steps whose sums are kept."""
        files = self._files()
        if not files:
            return {}
        parts = [StoredPart(file, lambda: {"attention": AttentionSums()}, {}) for file in files]
        found = series_arrays([_step_of(file) for file in files], parts)
        return {f"seed-None/{name}": array for name, array in found.items()}

    def keep(self) -> None:
        """As `save`, but a full disk is a warning and does not end the training."""
        with _told_not_raised():
            self.save()

    # -- the Trainer calls these -------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step(state, control, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step(state, control, kwargs["model"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keep()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keep()

    def _step(self, state: Any, control: Any, model: nn.Module) -> None:
        if not self.due(state.global_step):
            return
        logged = self.observe(model, state.global_step)
        if self._trainer is not None and logged:
            due = control.should_log  # logging resets it, and the Trainer's own numbers would be lost
            self._trainer.log(logged)
            control.should_log = due
        control.should_training_stop = control.should_training_stop or self.should_stop


def is_first_process() -> bool:
    """Whether this process writes and logs: the only one, or that of rank 0."""
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


@contextmanager
def _told_not_raised() -> Iterator[None]:
    """A training is worth more than its record."""
    try:
        yield
    except (OSError, StoreError) as error:
        warnings.warn(f"the run of the monitor could not be written: {error}", stacklevel=4)


def _step_of(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))
