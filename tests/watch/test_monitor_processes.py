"""The monitor in a Trainer of one and of two processes, against `sweep` on the checkpoints that the Trainer saved.

This file is also the program that torchrun starts: each process notes what it did, for the tests to read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, ByT5Tokenizer, Trainer, TrainerCallback, TrainingArguments

from anisoscope.inputs.sources import open_source
from anisoscope.runs.perform import perform
from anisoscope.runs.store import open_run
from anisoscope.watch import monitor as module
from anisoscope.watch.monitor import AnisotropyMonitor, Band
from anisoscope.watch.probe import SPECTRAL, Probe

SIZES = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LINES = [f"line {number} of the probe, {'and so on ' * (number % 4)}" for number in range(6)]
STEPS = 6


def make_model() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES, intermediate_size=32, max_position_embeddings=64))


class Bytes(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 384, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Noted(TrainerCallback):
    """What a reporting integration of this process would get; and, if told to, a collapse of the last layer."""

    def __init__(self, collapse_at: int | None = None) -> None:
        self.logged: list[str] = []
        self.collapse_at = collapse_at

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logged += list(logs or {})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.collapse_at is not None and state.global_step >= self.collapse_at:
            kwargs["model"].bert.encoder.layer[-1].output.LayerNorm.bias.data.fill_(5.0)


def train(folder: Path, monitor: AnisotropyMonitor, noted: Noted, **options: Any) -> dict[str, Any]:
    """Train with the monitor; what this process did."""
    written: list[str] = []
    original = module.write_run
    module.write_run = lambda place, **kept: (written.append(str(place)), original(place, **kept))[1]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        **options,
    )
    trainer = Trainer(
        make_model(), arguments, train_dataset=Bytes(), callbacks=[noted], processing_class=ByT5Tokenizer()
    )
    monitor.attach(trainer)
    trainer.train()
    module.write_run = original
    return {
        "written": len(written),
        "logged": noted.logged,
        "rows": len(monitor.rows),
        "warned": monitor.warned,
        "steps": trainer.state.global_step,
    }


def watched(folder: Path) -> dict[str, Any]:
    probe = open_source(folder / "lines.txt", "text", documents="lines")
    monitor = AnisotropyMonitor(probe, ByT5Tokenizer(), every=2, out=folder / "watch")
    return train(folder / "series", monitor, Noted(), max_steps=STEPS, save_steps=2, logging_steps=2)


def stopped(folder: Path) -> dict[str, Any]:
    band = Band(after=0, window=3, in_a_row=1)
    monitor = AnisotropyMonitor(LINES, ByT5Tokenizer(), every=1, attention=False, band=band, on_warning="stop")
    return train(folder / "stopped", monitor, Noted(collapse_at=5), max_steps=40, save_strategy="no")


def sharded() -> dict[str, Any]:
    """The cosines of a model whose weights lie half in each process, seen by the first, and of the whole one."""
    from torch.distributed.fsdp import fully_shard

    probe, whole, shared = Probe(LINES, ByT5Tokenizer(), logits=False), make_model(), make_model()
    expected = [row.value for row in probe.run(whole).as_rows(step=0) if row.metric in module.LOGGED]
    for layer in shared.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(shared)
    found = [row.value for row in probe.run(shared).as_rows(step=0) if row.metric in module.LOGGED]
    return {"expected": expected, "found": found}


def program(folder: Path) -> None:
    did = {"watched": watched(folder)}
    if "RANK" in os.environ:
        did |= {"stopped": stopped(folder), "sharded": sharded()}
    (folder / f"process-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(did))


def trained(folder: Path, processes: int) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a training, and what each of its processes did."""
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    if processes == 1:
        program(folder)
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        done = subprocess.run(
            [sys.executable, *launch, __file__, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return folder, [json.loads((folder / f"process-{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    return trained(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    return trained(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("processes", ["one_process", "two_processes"])
def test_the_numbers_are_those_of_a_sweep_over_the_saved_checkpoints(
    processes: str, request: pytest.FixtureRequest
) -> None:
    folder, _ = request.getfixturevalue(processes)
    settings = {"series": str(folder / "series"), "data": [str(folder / "lines.txt")], "documents": "lines"}
    settings |= {"sites": ["hidden", "attention", "logits"]}
    swept = perform("sweep", settings, out=folder / "swept")
    found, expected = (
        {
            (row.step, row.site, row.metric, row.at): (row.value, row.low, row.high, row.null, row.n)
            for row in rows
            if row.positions == "all" and row.step and row.metric not in SPECTRAL  # those of a sample
        }
        for rows in (open_run(folder / "watch").rows(), swept.rows)
    )
    assert set(found) <= set(expected)
    assert {step for step, *_ in found} == {2, 4, 6} == {step for step, *_ in expected}
    metrics = {
        "max_logit",
        "kurtosis",
        "massive_activation_ratio",
        "norm_growth",
        "logsumexp",
        "mean_cosine",
        "drift_ratio",
        "query_key_cosine",
        "query_key_dot",
        "entropy",
        "salience_share",
    }
    assert metrics <= {metric for _, _, metric, _ in found}
    for key, numbers in found.items():
        assert [number is None for number in numbers] == [number is None for number in expected[key]], key
        for mine, other in zip(numbers, expected[key], strict=True):
            assert mine is None or mine == pytest.approx(other, rel=1e-6, abs=1e-6), key


@pytest.mark.parametrize("processes", ["one_process", "two_processes"])
def test_the_first_process_alone_writes_and_logs(processes: str, request: pytest.FixtureRequest) -> None:
    _, (first, *others) = request.getfixturevalue(processes)
    assert first["watched"]["written"] > 0
    assert first["watched"]["logged"].count("anisotropy/block.1/mean_cosine") == 4
    assert first["watched"]["logged"].count("loss") == 3, "the Trainer's own numbers"
    for other in others:
        assert other["watched"]["written"] == other["watched"]["rows"] == 0
        assert not [name for name in other["watched"]["logged"] if name.startswith("anisotropy")]


def test_a_warning_stops_all_processes_at_the_same_step(two_processes: tuple[Path, list[dict[str, Any]]]) -> None:
    _, processes = two_processes
    assert [process["stopped"]["steps"] for process in processes] == [5, 5]
    assert [len(process["stopped"]["warned"]) for process in processes] == [1, 0]


def test_sharded_weights_give_the_numbers_of_whole_ones(two_processes: tuple[Path, list[dict[str, Any]]]) -> None:
    _, processes = two_processes
    for process in processes:
        assert len(process["sharded"]["found"]) > 10
        assert process["sharded"]["found"] == pytest.approx(process["sharded"]["expected"], abs=1e-6)


if __name__ == "__main__":
    program(Path(sys.argv[1]))
