"""python tests/benchmarks/bench_monitor.py [--steps 128] [--layers 4] [--width 96] [--batch 16] [--length 128] …

Two trainings of the same model on the same batches, one of them watched by the monitor at its default cadence (steps 0,
1, 2, 4, …, 1024, then every 1024), hidden states, attention and logits, run folder written. The two take their steps in
turn, so that whatever else the machine does falls on both. The sizes are those of the embedded series, the probe is as
large as a batch. Larger models pay less: part of an observation does not grow with the model.

Aim: at most 1.02 times the training alone over 1024 steps, which are observed twelve times (the first steps most often,
so that longer trainings pay less). That ratio is computed from the least seconds of a step and of an observation, since
a training of 1024 steps takes minutes; `--steps 1024` takes it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from contest import Aim, show

ALONE, WATCHED = "alone", "watched"
LEAST_STEPS = 1024  # shorter trainings are not held against the aim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = SimpleNamespace(steps=128, layers=4, width=96, heads=4, batch=16, length=128, vocabulary=384, threads=2)
    for name, value in vars(sizes).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()

    import torch

    from anisoscope.watch.monitor import AnisotropyMonitor

    torch.set_num_threads(chosen.threads)
    probe = torch.randint(3, chosen.vocabulary, (chosen.batch, chosen.length))
    with TemporaryDirectory() as folder:
        monitor = AnisotropyMonitor({"input_ids": probe}, out=Path(folder) / "watch")
        trainings = {ALONE: training(chosen), WATCHED: training(chosen)}
        spent: dict[str, list[float]] = {ALONE: [], WATCHED: []}
        observing: list[float] = []
        for step in range(chosen.steps + 1):
            for name, (_, take) in trainings.items() if step else ():
                spent[name].append(seconds(take))
            if monitor.due(step):
                observing.append(seconds(lambda step=step: monitor.observe(trainings[WATCHED][0], step)))
        observing.append(seconds(monitor.save))
    alone, watched = sum(spent[ALONE]), sum(spent[WATCHED]) + sum(observing)
    least_step, least_observed = min(spent[ALONE]), min(observing[1:-1])

    def foretold(steps: int) -> Aim:
        often = sum(monitor.due(step) for step in range(steps + 1))
        what = f"over {steps} steps, {often} observations, from least seconds"
        return Aim(what, 1 + often * least_observed / (steps * least_step), 1.02)

    most = 1.02 if chosen.steps >= LEAST_STEPS else None
    taken = f"watched / alone over {chosen.steps} steps, {len(observing) - 1} observations"
    cost = Aim("an observation / a training step, from least seconds", least_observed / least_step, None)
    aims = [cost, Aim(taken, watched / alone, most), foretold(1024), foretold(8192)]
    rows = {
        ALONE: {"seconds": alone, "step": least_step},
        WATCHED: {"seconds": watched, "step": min(spent[WATCHED]), "observation": least_observed},
    }
    size = f"{chosen.layers} layers of {chosen.width}, {chosen.batch}×{chosen.length} tokens a step"
    show(f"{size}, {chosen.threads} threads; the whole, and the least of a step and of an observation", rows, aims)


def training(chosen: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    """A masked language model, and a function that takes the next step of its training."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=chosen.vocabulary,
        hidden_size=chosen.width,
        num_hidden_layers=chosen.layers,
        num_attention_heads=chosen.heads,
        intermediate_size=3 * chosen.width // 2,
        max_position_embeddings=chosen.length,
    )
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        ids = torch.randint(3, chosen.vocabulary, (chosen.batch, chosen.length), generator=generator)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
