"""The monitor inside a real Lightning training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

import zoo
from anisoscope.errors import ModelError
from anisoscope.runs.store import open_run
from anisoscope.watch.lightning_callback import lightning_callback, outermost_model
from anisoscope.watch.monitor import AnisotropyMonitor, Band

lightning = pytest.importorskip("lightning.pytorch")
TINY = zoo.sizes(vocab_size=50)
PROBE = {"input_ids": torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(1))}


class Wrapped(lightning.LightningModule):
    """A masked language model as Lightning has it, collapsing at a step if it is told to."""

    def __init__(self, collapse_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = BertForMaskedLM(BertConfig(**TINY, max_position_embeddings=32))
        self.collapse_at = collapse_at

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if self.collapse_at is not None and self.global_step >= self.collapse_at:
            self.network.bert.encoder.layer[-1].output.LayerNorm.bias.data.fill_(5.0)
        return self.network(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Kept(lightning.loggers.logger.Logger):
    """A logger that remembers."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.by_step: dict[int, dict[str, float]] = {}

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.by_step.setdefault(step or 0, {}).update(metrics)


def fit(folder: Path, module: Wrapped, monitor: AnisotropyMonitor, **options: Any) -> tuple[Any, Kept]:
    kept = Kept()
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=kept,
        callbacks=[lightning_callback(monitor)],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    generator = torch.Generator().manual_seed(0)
    trainer.fit(module, torch.utils.data.DataLoader(list(torch.randint(50, (64, 12), generator=generator)), 4))
    return trainer, kept


def test_every_logger_gets_the_numbers_and_the_run_is_kept(tmp_path: Path) -> None:
    module, monitor = Wrapped(), AnisotropyMonitor(PROBE, out=tmp_path / "watch")
    _, kept = fit(tmp_path, module, monitor, max_steps=4, accumulate_grad_batches=2)
    assert sorted(kept.by_step) == [0, 1, 2, 4]
    again = AnisotropyMonitor(PROBE).observe(module.network, 4)
    assert kept.by_step[4] == pytest.approx(again, abs=1e-9)
    assert "anisotropy/block.1/mean_cosine" in again
    assert module.network.training
    assert {row.step for row in open_run(tmp_path / "watch").rows()} == {0, 1, 2, 4}


def test_a_warning_stops_the_training(tmp_path: Path) -> None:
    band = Band(after=0, window=3, in_a_row=1)
    monitor = AnisotropyMonitor(PROBE, every=1, attention=False, band=band, on_warning="stop")
    with pytest.warns(UserWarning, match="left its band"):
        trainer, _ = fit(tmp_path, Wrapped(collapse_at=5), monitor, max_steps=40)
    assert trainer.global_step == 6


def test_a_module_without_a_model_of_transformers_is_told() -> None:
    with pytest.raises(ModelError, match="no model of transformers"):
        outermost_model(nn.Linear(2, 2))
