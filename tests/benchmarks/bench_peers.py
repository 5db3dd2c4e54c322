"""The same statistics of a small GPT-2 (random weights) by TransformerLens' `run_with_cache` and by nnsight.

All three give the average cosine and the covariance spectrum of every block's output over the same tokens. The peers
keep activations and compute in torch, as their tutorials do. They live in an environment of their own, which
`make bench-peers` makes; without it this benchmark has no rows. Each run is a process; seconds are those of the work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contest import arguments, compared, give, peak_megabytes

OURS, PEERS = "anisoscope", {"lens": "TransformerLens `run_with_cache`", "nnsight": "nnsight"}
LAYERS, WIDTH, LENGTH, BATCHES, BATCH = 6, 256, 256, 8, 16


def gpt2() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": WIDTH // 64, "n_positions": LENGTH}
    config = GPT2Config(**sizes, vocab_size=1000, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


def tokens(batches: int) -> Any:
    import torch

    shape = (batches, BATCH, LENGTH)
    return torch.randint(1000, shape, generator=torch.Generator().manual_seed(0))


def statistics(kept: dict[str, list[Any]]) -> dict[str, float]:
    """Average cosine of all pairs and IsoScore of every layer, from activations."""
    import torch

    found = {}
    for name, parts in kept.items():
        x = torch.cat(parts).double()
        unit, values = x / x.norm(dim=1, keepdim=True), torch.linalg.eigvalsh(torch.cov(x.T))
        ratio = values.sum() ** 2 / values.square().sum()
        cosine = (unit.sum(0).square().sum() - len(x)) / (len(x) * (len(x) - 1))
        found[name] = float(cosine) + float((ratio - 1) / (x.shape[1] - 1))
    return found


def ours(batches: int) -> None:
    from transformers import ByT5Tokenizer

    import anisoscope
    from anisoscope.inputs.sources import Document

    rows = tokens(batches).flatten(0, 1)
    documents = [Document(str(number), "", tuple(row.tolist())) for number, row in enumerate(rows)]
    size = {"length": LENGTH, "batch_tokens": BATCH * LENGTH}
    anisoscope.measure(gpt2(), documents, processor=ByT5Tokenizer(), sites=["block.*"], neighbours=False, **size)


def lens(batches: int) -> None:
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import ByT5Tokenizer

    model, kept = TransformerBridge.boot_transformers("gpt2", hf_model=gpt2(), tokenizer=ByT5Tokenizer()), {}
    wanted = [f"blocks.{layer}.hook_out" for layer in range(LAYERS)]
    with torch.inference_mode():
        for batch in tokens(batches):
            _, cache = model.run_with_cache(batch, names_filter=wanted)
            for name in wanted:
                kept.setdefault(name, []).append(cache[name].flatten(0, 1))
    statistics(kept)


def nnsight(batches: int) -> None:
    import torch
    from nnsight import NNsight

    model, kept = NNsight(gpt2()), {}
    with torch.inference_mode():
        for batch in tokens(batches):
            with model.trace(batch):
                saved = list().save()  # noqa: C408  # nnsight gives lists a `save`, literals have none
                for block in model.transformer.h:
                    state = block.output
                    saved.append(state[0] if isinstance(state, tuple) else state)
            for number, state in enumerate(saved):
                kept.setdefault(str(number), []).append(state.reshape(-1, WIDTH))
    statistics(kept)


def contend(name: str, batches: int) -> None:
    import torch

    torch.set_num_threads(1)
    run = {OURS: ours, "lens": lens, "nnsight": nnsight}[name]
    run(1)
    started = time.perf_counter()
    run(batches)
    print(json.dumps({"seconds": time.perf_counter() - started, "peak": peak_megabytes()}))


def main() -> None:
    chosen = arguments(__doc__, contender="", peers=".tools/peers/bin/python", batches=BATCHES)
    if chosen.contender:
        contend(chosen.contender, chosen.batches)
        return
    if not Path(chosen.peers).exists():
        print("no peers here (make bench-peers): passed over", file=sys.stderr)
        give([])
        return
    batches = 1 if chosen.small else BATCHES
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(1 if chosen.small else 3):
        for name in (OURS, *PEERS):
            python = sys.executable if name == OURS else chosen.peers
            command = [python, __file__, f"--contender={name}", f"--batches={batches}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name} failed and is passed over:\n{done.stderr[-2000:]}", file=sys.stderr)
                continue
            for key, value in json.loads(done.stdout.splitlines()[-1]).items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
    what = f"spectra of GPT-2, {LAYERS} layers of {WIDTH}, {batches * BATCH * LENGTH:,} tokens"
    rows = []
    for name in (name for name in PEERS if name in found and OURS in found):
        for key, unit, word in (("seconds", "s", "time"), ("peak", "MB", "peak memory")):
            rows.append(compared(f"{what}: {word}", found[OURS][key], PEERS[name], found[name][key], unit=unit))
    give(rows)


if __name__ == "__main__":
    main()
