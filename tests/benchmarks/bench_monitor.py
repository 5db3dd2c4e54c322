"""What an observation of the monitor costs, in steps of the training that it watches.

Sizes are those of the embedded series, the probe is as large as a batch; hidden states and attention, run folder
written. Larger models pay less: part of an observation does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contest import arguments, compared, give, in_turn, stated

BATCH, LENGTH, VOCABULARY = 16, 128, 384


def training() -> tuple[Any, Callable[[], None]]:
    """A masked language model, and a function that takes the next step of its training."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=144,
        max_position_embeddings=LENGTH,
    )
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def main() -> None:
    chosen = arguments(__doc__)

    import torch

    from anisoscope.watch.monitor import AnisotropyMonitor

    torch.set_num_threads(chosen.threads)
    model, step = training()
    with TemporaryDirectory() as folder:
        probe = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
        monitor = AnisotropyMonitor({"input_ids": probe}, out=Path(folder) / "watch")
        times = iter(range(1000))
        runs = {"step": step, "observation": lambda: monitor.observe(model, next(times))}
        taken = in_turn(runs, turns=2 if chosen.small else 9)
    often = sum(monitor.due(number) for number in range(1025))
    row = compared("one observation of the monitor", taken["observation"], "one step of training", taken["step"])
    whole = stated("training watched at the default cadence, over 1,024 steps", [1 + often * row["ratio"] / 1024])
    give([row, whole | {"unit": "×", "aim": 1.02}])


if __name__ == "__main__":
    main()
