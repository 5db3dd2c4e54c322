"""The monitor inside a real Trainer: it measures what a fresh capture measures, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

from anisoscope.runs.store import open_run
from anisoscope.training.monitor import AnisotropyMonitor, Band

TINY = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def model(seed: int = 0) -> BertForMaskedLM:
    torch.manual_seed(seed)
    return BertForMaskedLM(BertConfig(**TINY, max_position_embeddings=32))


def probe() -> dict[str, torch.Tensor]:
    ids = torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    return {"input_ids": ids, "attention_mask": mask}


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Seen(TrainerCallback):
    """What a reporting integration would get."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.names |= set(logs or {})


def train(folder: Path, network: BertForMaskedLM, monitor: AnisotropyMonitor | None, *, steps: int = 8) -> Seen:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=100, seed=0,
    )  # fmt: skip
    seen = Seen()
    trainer = Trainer(network, arguments, train_dataset=Sentences(), callbacks=[seen])
    if monitor is not None:
        monitor.attach(trainer)
    trainer.train()
    return seen


def test_it_logs_through_the_trainer_and_keeps_a_run(tmp_path: Path) -> None:
    monitor = AnisotropyMonitor(probe(), out=tmp_path / "watch")
    seen = train(tmp_path, model(), monitor)
    assert {"anisotropy/block.1/mean_cosine", "anisotropy/block.0/query_key_cosine"} <= seen.names
    run = open_run(tmp_path / "watch")
    assert sorted({row.step for row in run.rows(metric="mean_cosine", site="block.1")}) == [0, 1, 2, 4, 8]


def test_a_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    watched, alone = model(), model()
    train(tmp_path, watched, AnisotropyMonitor(probe(), every=1))
    train(tmp_path, alone, None)
    for mine, other in zip(watched.state_dict().values(), alone.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    assert watched.training == alone.training


def test_the_cosine_is_that_of_all_pairs_of_real_positions() -> None:
    network, batch = model().eval(), probe()
    monitor = AnisotropyMonitor(batch, attention=False)
    found = monitor.observe(network, 3)["anisotropy/block.1/mean_cosine"]
    with torch.no_grad():
        states = network(**batch, output_hidden_states=True).hidden_states[-1].double()
    units = torch.nn.functional.normalize(states[batch["attention_mask"].bool()], dim=1)
    gram = units @ units.T
    n = len(units)
    assert found == pytest.approx(float((gram.sum() - n) / (n * (n - 1))), abs=1e-9)


def test_it_stops_a_training_whose_last_layer_collapses(tmp_path: Path) -> None:
    told: list[str] = []

    class Collapse(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step >= 7:
                last = kwargs["model"].bert.encoder.layer[-1].output.LayerNorm
                last.bias.data.fill_(5.0)

    network = model()
    monitor = AnisotropyMonitor(probe(), every=1, attention=False, on_warning="stop")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=40, per_device_train_batch_size=4, learning_rate=1e-5, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(network, arguments, train_dataset=Sentences(), callbacks=[Collapse()])
    monitor.attach(trainer)
    with pytest.warns(UserWarning, match="left its band"):
        trainer.train()
    told += monitor.warned
    assert told
    assert trainer.state.global_step < 40


def test_a_band_needs_a_level_before_it_can_be_left() -> None:
    assert not Band().left([0.1, 0.9, 0.95])
    assert Band(margin=0.05).left([0.1] * 5 + [0.2, 0.2])
    assert not Band(margin=0.05).left([0.1] * 5 + [0.2, 0.1])
