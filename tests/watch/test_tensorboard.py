"""The monitor's numbers in TensorBoard: written by the Trainer, read back by tensorboard from the event files."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

import zoo
from anisoscope.watch.monitor import AnisotropyMonitor

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
IDS = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))
NAME = "anisotropy/block.1/mean_cosine"


def test_the_curves_are_in_the_event_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    torch.manual_seed(0)
    sizes = zoo.sizes()
    model = BertForMaskedLM(BertConfig(vocab_size=50, max_position_embeddings=32, **sizes))
    quiet = {"save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    given = TrainingArguments(str(tmp_path / "out"), max_steps=4, report_to=["tensorboard"], **quiet)
    trainer = Trainer(model, given, train_dataset=[{"input_ids": row, "labels": row} for row in IDS])
    monitor = AnisotropyMonitor({"input_ids": IDS[:4], "attention_mask": torch.ones(4, 12)}, steps=[0, 1, 4])
    monitor.attach(trainer)
    trainer.train()

    files = sorted((tmp_path / "events").rglob("events.out.tfevents.*"))
    read = accumulator.EventAccumulator(str(files[0].parent))
    read.Reload()
    assert f"train/{NAME}" in read.Tags()["scalars"]
    told = {event.step: event.value for event in read.Scalars(f"train/{NAME}")}
    rows = [row for row in monitor.rows if row.site == "block.1" and row.metric == "mean_cosine"]
    assert told == pytest.approx({row.step: row.value for row in rows if row.positions == "all"}, rel=1e-6)
    assert sorted(told) == [0, 1, 4]
