"""`measure` on a model of random weights against the bare forward pass over the same batches.

The pass alone, then the whole call with metrics, in processor seconds; and peak memory with one and with four batches,
each in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from contest import arguments, compared, give, in_processes, in_turn, peak_megabytes

FORWARD, DIRECTIONS, SPECTRA = "bare forward pass", "directions", "spectra"


def make_model(layers: int, width: int, length: int, threads: int) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=length,
    )
    return BertModel(config, add_pooling_layer=False).eval()


class RandomBatches:
    """Full windows of random tokens: what `models.batches` gives, without the tokenizer."""

    def __init__(self, rows: int, length: int, batches: int) -> None:
        self.rows, self.length, self.batches = rows, length, batches
        self.expected, self.batch_tokens = batches * rows, rows * length

    def iterate(self, start_at: int = 0, wanted: object = None) -> Iterator[tuple[int, Any]]:
        import torch

        from anisoscope.models.batches.plan import Batch

        for number in range(self.batches):
            ids = torch.randint(30_000, (self.rows, self.length), generator=torch.Generator().manual_seed(number))
            none = torch.zeros(ids.shape, dtype=torch.bool)
            keys = [f"document {number}.{row}" for row in range(self.rows)]
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            after = (number + 1) * self.rows
            yield after, Batch(inputs, keys, [0] * self.rows, ~none, none, resume_at=after, whole=True)


def passes(model: Any, source: Any) -> dict[str, Callable[[], object]]:
    """The loop alone: forward, and forward with sums."""
    import torch

    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.runs.work.observers import HiddenSums
    from anisoscope.runs.work.passes import run_pass
    from anisoscope.runs.work.units import Unit

    def forward() -> None:
        with torch.inference_mode():
            for _, batch in source.iterate():
                model(**batch.inputs)

    def measure(*, spectrum: bool) -> None:
        observed: Any = SimpleNamespace(module=model)
        run_pass(observed, source, {"hidden": HiddenSums(HiddenCapture(model), spectrum=spectrum)}, unit=Unit())

    sums = {DIRECTIONS: lambda: measure(spectrum=False), SPECTRA: lambda: measure(spectrum=True)}
    return {FORWARD: forward, **sums}


def calls(model: Any, tokens: int, length: int) -> dict[str, Callable[[], object]]:
    """The whole call, from token ids to rows, against the forward pass over the same windows."""
    import torch
    from transformers import ByT5Tokenizer

    import anisoscope
    from anisoscope.inputs.sources import Document

    tokenizer = ByT5Tokenizer()  # asked for, but the documents are ids already
    ids = torch.randint(30_000, (tokens // length, length), generator=torch.Generator().manual_seed(0))
    documents = [Document(str(number), "", tuple(row.tolist())) for number, row in enumerate(ids)]

    def forward() -> None:
        with torch.inference_mode():
            for some in ids.split(16):
                model(input_ids=some, attention_mask=torch.ones_like(some))

    def measure(*, spectrum: bool) -> None:
        size = {"length": length, "batch_tokens": 16 * length}
        anisoscope.measure(model, documents, processor=tokenizer, spectrum=spectrum, **size)

    return {FORWARD: forward, DIRECTIONS: lambda: measure(spectrum=False), SPECTRA: lambda: measure(spectrum=True)}


def main() -> None:
    chosen = arguments(__doc__, peak=0)
    layers, width, length, batch = (2, 64, 32, 4) if chosen.small else (6, 768, 512, 16)
    model = make_model(layers, width, length, chosen.threads)
    if chosen.peak:
        passes(model, RandomBatches(batch, length, chosen.peak))[SPECTRA]()
        print(json.dumps({"peak": peak_megabytes()}))
        return
    size = f"{layers} layers of {width}, {batch}×{length} tokens"
    wall = in_turn(passes(model, RandomBatches(batch, length, 1)), turns=1 if chosen.small else 3)
    rows = [
        compared(f"`measure`, {name}: {size}", wall[name], FORWARD, wall[FORWARD], aim=aim)
        for name, aim in ((DIRECTIONS, 1.03), (SPECTRA, 1.10))
    ]
    tokens, depth = (2048, 2) if chosen.small else (24_000, 4)
    whole = calls(make_model(depth, width, length, chosen.threads), tokens, length)
    used = in_turn(whole, turns=1 if chosen.small else 2, clock=time.process_time)
    rows += [
        compared(
            f"the whole call, {name}: {tokens:,} tokens, {depth} layers of {width} (processor time)",
            used[name],
            FORWARD,
            used[FORWARD],
            aim=aim,
        )
        for name, aim in ((DIRECTIONS, 1.05), (SPECTRA, 1.15))
    ]
    flags = [__file__, f"--threads={chosen.threads}", *(["--small"] if chosen.small else [])]
    peaks = in_processes({str(n): [*flags, f"--peak={n}"] for n in (1, 2, 4, 8)}, turns=1)
    for few, many in (("1", "4"), ("2", "8")):  # the allocator keeps what the first batch freed: one step, then none
        what = f"peak memory of `measure` over {many} batches"
        growth = compared(what, peaks[many]["peak"], f"over {few}", peaks[few]["peak"])
        rows.append(growth | {"unit": "MB", "aim": 1.02})
    give(rows)


if __name__ == "__main__":
    sys.exit(main())
