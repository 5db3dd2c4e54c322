"""The monitor inside a Lightning training (`pip install 'anisoscope[lightning]'`).

    from anisoscope.watch.lightning_callback import lightning_callback

    monitor = AnisotropyMonitor(texts, tokenizer, out="runs/watch")
    trainer = lightning.Trainer(callbacks=[lightning_callback(monitor)])

A step is one of the optimizer (`trainer.global_step`), as in the Trainer of transformers. All loggers of the training
get `anisotropy/block.3/mean_cosine` and the rest; `on_warning="stop"` ends it after the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel

from anisoscope.errors import MissingExtra, ModelError
from anisoscope.watch.monitor import AnisotropyMonitor

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer


def lightning_callback(monitor: AnisotropyMonitor, *, model: Callable[[Any], nn.Module] | None = None) -> Callback:
    """A callback that lets the monitor observe. `model` finds it in the LightningModule (default: the outermost model
    of transformers within)."""
    try:
        from lightning.pytorch import Callback
    except ImportError as error:
        raise MissingExtra("lightning", needed_for="the callback for Lightning", extra="lightning") from error

    class Observing(Callback):
        seen: int | None = None

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self._step(trainer, pl_module)

        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self._step(trainer, pl_module)

        def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
            monitor.keep()

        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            monitor.keep()

        def _step(self, trainer: Trainer, pl_module: LightningModule) -> None:
            step = trainer.global_step
            if step == self.seen or not monitor.due(step):  # batches of one accumulated step share its number
                return
            self.seen = step
            logged = monitor.observe((model or outermost_model)(pl_module), step)
            for logger in trainer.loggers:
                logger.log_metrics(logged, step=step)
            trainer.should_stop = trainer.should_stop or monitor.should_stop

    return Observing()


def outermost_model(module: nn.Module) -> nn.Module:
    """The first model of transformers in a module."""
    found = next((part for part in module.modules() if isinstance(part, PreTrainedModel)), None)
    if found is None:
        raise ModelError(
            "no model of transformers in this module",
            where=type(module).__name__,
            do="lightning_callback(monitor, model=lambda module: module.encoder)",
        )
    return found
