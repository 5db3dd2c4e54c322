"""python tests/benchmarks/bench_measure.py [--layers 12] [--width 768] [--length 512] [--batch 16] [--batches 2] …

`measure` on a model of BERT-base's size (random weights) against the bare forward pass over the same batches, and
against the usual way: store all hidden states, then draw 10,000 pairs a layer. Within one process for the time, the
contenders in turn; in processes of their own for the memory, with few and with many batches.

Aims: at most 1.05 times the forward pass with directions only, at most 1.15 times with spectra, and memory constant in
the number of batches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from contest import Aim, in_processes, in_turn, peak_megabytes, show

PAIRS = 10_000
FORWARD, DIRECTIONS, SPECTRA, STORED = "forward pass", "measure, directions", "measure, spectra", "store and sample"


def make_model(chosen: argparse.Namespace) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    torch.set_num_threads(chosen.threads)
    heads = max(1, chosen.width // 64)
    config = BertConfig(
        hidden_size=chosen.width,
        num_hidden_layers=chosen.layers,
        num_attention_heads=heads,
        intermediate_size=4 * chosen.width,
        max_position_embeddings=chosen.length,
    )
    return BertModel(config, add_pooling_layer=False).eval()


class RandomBatches:
    """Full windows of random tokens, `batch` rows at a time: what `models.batches` gives, without the tokenizer."""

    def __init__(self, chosen: argparse.Namespace, batches: int, vocabulary: int) -> None:
        self.rows, self.length, self.batches, self.vocabulary = chosen.batch, chosen.length, batches, vocabulary
        self.total, self.batch_tokens = batches * chosen.batch, chosen.batch * chosen.length

    @property
    def expected(self) -> int:
        return self.total

    def iterate(self, start_at: int = 0, wanted: object = None) -> Iterator[tuple[int, Any]]:
        import torch

        from anisoscope.models.batches.plan import Batch

        for number in range(self.batches):
            generator = torch.Generator().manual_seed(number)
            ids = torch.randint(self.vocabulary, (self.rows, self.length), generator=generator)
            mask = torch.ones_like(ids)
            keys = [f"document {number}.{row}" for row in range(self.rows)]
            none = torch.zeros(ids.shape, dtype=torch.bool)
            inputs = {"input_ids": ids, "attention_mask": mask}
            after = (number + 1) * self.rows
            yield (
                number * self.rows,
                Batch(inputs, keys, [0] * self.rows, valid=~none, special=none, resume_at=after, whole=True),
            )


def contenders(chosen: argparse.Namespace, batches: int) -> dict[str, Callable[[], object]]:
    import torch

    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.runs.work.observers import HiddenSums
    from anisoscope.runs.work.passes import run_pass
    from anisoscope.runs.work.units import Unit

    model = make_model(chosen)
    source: Any = RandomBatches(chosen, batches, model.config.vocab_size)

    def forward() -> None:
        with torch.inference_mode():
            for _, batch in source.iterate():
                model(**batch.inputs)

    def measure(*, spectrum: bool) -> None:
        observed: Any = SimpleNamespace(module=model)
        run_pass(observed, source, {"hidden": HiddenSums(HiddenCapture(model), spectrum=spectrum)}, unit=Unit())

    def store_and_sample() -> list[float]:
        kept: list[list[torch.Tensor]] = []
        with torch.inference_mode():
            for _, batch in source.iterate():
                states = model(**batch.inputs, output_hidden_states=True).hidden_states
                kept.append([state.flatten(0, 1) for state in states])
            found = []
            for layer in zip(*kept, strict=True):
                cloud = torch.cat(layer)
                i, j = torch.randint(len(cloud), (2, PAIRS))
                found.append(float(torch.cosine_similarity(cloud[i], cloud[j]).mean()))
        return found

    return {
        FORWARD: forward,
        DIRECTIONS: lambda: measure(spectrum=False),
        SPECTRA: lambda: measure(spectrum=True),
        STORED: store_and_sample,
    }


def peak_of(chosen: argparse.Namespace) -> None:
    """In a process of its own: one contender, and its peak memory."""
    contenders(chosen, chosen.batches)[chosen.contender]()
    print(json.dumps({"peak MB": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = SimpleNamespace(layers=12, width=768, length=512, batch=16, batches=2, threads=2, turns=3)
    for name, value in vars(sizes).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--contender")
    chosen = parser.parse_args()
    if chosen.contender:
        peak_of(chosen)
        return
    runs = contenders(chosen, chosen.batches)
    runs[SPECTRA]()  # warm up
    seconds = in_turn(runs, turns=chosen.turns)
    same = [f"--{name}={getattr(chosen, name)}" for name in ("layers", "width", "length", "batch", "threads")]
    memory = {
        (name, factor): [__file__, f"--contender={name}", f"--batches={factor * chosen.batches}", *same]
        for name in (FORWARD, SPECTRA, STORED)
        for factor in (1, 4)
    }
    peaks = in_processes({f"{name} × {factor}": arguments for (name, factor), arguments in memory.items()}, turns=1)
    rows: dict[str, dict[str, float]] = {name: {"seconds": value} for name, value in seconds.items()}
    for name, factor in memory:
        rows[name][f"MB, {factor * chosen.batches} batches"] = peaks[f"{name} × {factor}"]["peak MB"]
    growth = peaks[f"{SPECTRA} × 4"]["peak MB"] / peaks[f"{SPECTRA} × 1"]["peak MB"]
    stored = peaks[f"{STORED} × 4"]["peak MB"] / peaks[f"{STORED} × 1"]["peak MB"]
    aims = [
        Aim("directions / forward, time", seconds[DIRECTIONS] / seconds[FORWARD], 1.05),
        Aim("spectra / forward, time", seconds[SPECTRA] / seconds[FORWARD], 1.15),
        Aim("measure, four times the batches / once, peak memory", growth, 1.05),
        Aim("spectra / store and sample, time", seconds[SPECTRA] / seconds[STORED]),
        Aim("store and sample, four times the batches / once, peak memory", stored),
    ]
    size = (
        f"{chosen.layers} layers of {chosen.width}, {chosen.batches} batches of {chosen.batch}×{chosen.length} tokens"
    )
    show(f"{size}, {chosen.threads} threads, best of {chosen.turns}", rows, aims)


if __name__ == "__main__":
    main()
