"""Queries, keys and attention rows with all sums, against the same model with eager attention (which forms every row)
and with sdpa (which forms none).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bench_measure import RandomBatches, make_model
from contest import arguments, compared, give, in_turn


def main() -> None:
    chosen = arguments(__doc__)

    import torch

    from anisoscope.runs.work.observers import AttentionSums

    layers, width, length, rows = (1, 64, 32, 2) if chosen.small else (4, 768, 512, 16)
    model = make_model(layers, width, length, chosen.threads)
    _, batch = next(RandomBatches(rows, length, 1).iterate())

    @torch.inference_mode()
    def forward(implementation: str) -> None:
        model.set_attn_implementation(implementation)
        model(**batch.inputs)

    @torch.inference_mode()
    def sums() -> None:
        observed: Any = SimpleNamespace(module=model)
        with AttentionSums().watch(observed, batch):
            model(**batch.inputs)

    runs = {"eager": lambda: forward("eager"), "sdpa": lambda: forward("sdpa"), "sums": sums}
    taken = in_turn(runs, turns=1 if chosen.small else 3)
    what = f"attention with all sums: {layers} layers of {width}, {rows}×{length} tokens"
    aims = (("eager", 1.12), ("sdpa", 1.30))
    give([compared(what, taken["sums"], f"forward pass, {other}", taken[other], aim=aim) for other, aim in aims])


if __name__ == "__main__":
    main()
