"""What an observation of the monitor costs, in steps of the training that it watches.

Two sizes: that of the embedded series and that of MiniLM; the probe is as large as a batch, with labels; hidden states,
attention and outputs, run folder written. Larger models pay less: part of an observation does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contest import arguments, compared, give, in_turn, stated

BATCH, LENGTH, VOCABULARY = 16, 128, 384
# width, layers, heads, inner width
SIZES = ((96, 4, 4, 144), (384, 6, 12, 1536))


def training(hidden: int, layers: int, heads: int, inner: int) -> tuple[Any, Callable[[], None]]:
    """A masked language model, and a function that takes the next step of its training."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
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


def watched(size: tuple[int, int, int, int], turns: int) -> list[dict[str, Any]]:
    """An observation of a model in training against a step of that training."""
    import torch

    from anisoscope.watch.monitor import AnisotropyMonitor

    model, step = training(*size)
    with TemporaryDirectory() as folder:
        probe = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
        monitor = AnisotropyMonitor({"input_ids": probe, "labels": probe}, out=Path(folder) / "watch")
        times = iter(range(1000))
        runs = {"step": step, "observation": lambda: monitor.observe(model, next(times))}
        taken = in_turn(runs, turns=turns)
    often = sum(monitor.due(number) for number in range(1025))
    what = f"{size[1]} layers of {size[0]}, {size[2]} heads"
    row = compared(
        f"one observation of the monitor: {what}", taken["observation"], "one step of training", taken["step"]
    )
    whole = stated(
        f"training watched at the default cadence, over 1,024 steps: {what}", [1 + often * row["ratio"] / 1024]
    )
    return [row, whole | {"unit": "×", "aim": 1.02}]


def main() -> None:
    chosen = arguments(__doc__)

    import torch

    torch.set_num_threads(chosen.threads)
    sizes = SIZES[:1] if chosen.small else SIZES
    give([row for size in sizes for row in watched(size, turns=2 if chosen.small else 9)])


if __name__ == "__main__":
    main()
