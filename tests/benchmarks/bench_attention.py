"""python tests/benchmarks/bench_attention.py [--layers 12] [--width 768] [--length 512] [--batch 16] [--turns 3] …

Capture of queries, keys and attention rows, all sums taken, against the same model with eager attention (which forms
every row too) and with sdpa (which forms none). In between, the capture alone, with a sink that takes nothing.

Aim: at most 1.25 times eager attention. The ratio to sdpa is stated.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

from bench_measure import RandomBatches, make_model
from contest import Aim, in_turn, show

EAGER, SDPA, CAPTURE, SUMS = "eager", "sdpa", "capture alone", "capture and sums"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = SimpleNamespace(layers=12, width=768, length=512, batch=16, threads=2, turns=3)
    for name, value in vars(sizes).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()

    import torch

    from anisoscope.capture.attention.capture import AttentionCapture
    from anisoscope.runs.work.observers import AttentionSums

    model = make_model(chosen)
    _, batch = next(RandomBatches(chosen, 1, model.config.vocab_size).iterate())

    @torch.inference_mode()
    def forward(implementation: str) -> None:
        model.set_attn_implementation(implementation)
        model(**batch.inputs)

    @torch.inference_mode()
    def capture() -> None:
        with AttentionCapture(model, lambda _name, _call: None):
            model(**batch.inputs)

    @torch.inference_mode()
    def sums() -> None:
        observed: Any = SimpleNamespace(module=model)
        with AttentionSums().watch(observed, batch):
            model(**batch.inputs)

    runs = {EAGER: lambda: forward("eager"), SDPA: lambda: forward("sdpa"), CAPTURE: capture, SUMS: sums}
    sums()  # warm up
    seconds = in_turn(runs, turns=chosen.turns)
    aims = [
        Aim("capture and sums / eager, time", seconds[SUMS] / seconds[EAGER], 1.25),
        Aim("capture alone / eager, time", seconds[CAPTURE] / seconds[EAGER]),
        Aim("capture and sums / sdpa, time", seconds[SUMS] / seconds[SDPA]),
    ]
    size = f"{chosen.layers} layers of {chosen.width}, {chosen.batch}×{chosen.length} tokens"
    rows = {name: {"seconds": value} for name, value in seconds.items()}
    show(f"{size}, {chosen.threads} threads, best of {chosen.turns}", rows, aims)


if __name__ == "__main__":
    main()
