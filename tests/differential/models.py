"""Random small models and texts through `measure`, against the library's own forward pass, a text at a time.

problems_of(number, folder)     # [] where every metric at every site agrees with the reference
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import zoo
from differential.clouds import said
from differential.verdicts import Cloud, problems

BLOCKS = {"gpt2": "h", "bert": "encoder.layer"}
WORDS = (
    "a",
    "b",
    "drifts",
    "further",
    "away",
    "mean",
    "of",
    "them",
    "all",
    "while",
    "nothing",
    "else",
    "moves",
    "line",
)


def problems_of(number: int, folder: Path, *, apart: bool = False) -> list[str]:
    """What does not agree in one case."""
    rng = np.random.default_rng([21, number])
    shutil.rmtree(folder, ignore_errors=True)
    name = str(rng.choice(sorted(BLOCKS)))
    zoo.save(name, folder / name, seed=number)
    lines = [" ".join(rng.choice(WORDS, int(rng.integers(1, 14)))) for _ in range(int(rng.integers(2, 12)))]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    given = [
        "--data",
        str(folder / "texts.txt"),
        "--documents",
        "lines",
        "--dtype",
        "float64",
        "--json",
        "--no-figures",
    ]
    batch = ["--batch-tokens", str(rng.choice([40, 200, 4000]))]
    code, answer, errors = said(
        ["measure", str(folder / name), *given, *batch, "--out", str(folder / "run")], apart=apart
    )
    if code:
        return [f"code {code}: {errors[-300:]}"]
    found = []
    for site, states in sites_of(name, folder / name, lines).items():
        found += [f"{site}: {problem}" for problem in _compared(answer["measurements"], site, states)]
    return found


def sites_of(name: str, folder: Path, lines: list[str]) -> dict[str, list[Any]]:
    """The states of every text at every site, by hooks on the library's modules."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    blocks = model.get_submodule(BLOCKS[name])
    watched = {f"block.{k}": block for k, block in enumerate(blocks)}
    watched |= {"final_norm": model.ln_f} if name == "gpt2" else {}
    found: dict[str, list[Any]] = {site: [] for site in ("embeddings", *watched)}

    def keep(site: str) -> Any:
        return lambda module, given, out: found[site].append((out[0] if isinstance(out, tuple) else out)[0].numpy())

    for site, module in watched.items():
        module.register_forward_hook(keep(site))
    for line in lines:
        with torch.no_grad():
            states = model(torch.tensor([tokenizer(line)["input_ids"]]), output_hidden_states=True).hidden_states
        found["embeddings"].append(states[0][0].numpy())
    return found


def _compared(rows: Any, site: str, states: list[Any]) -> list[str]:
    sequence = np.concatenate([np.full(len(one), k) for k, one in enumerate(states)])
    first = np.concatenate([np.arange(len(one)) == 0 for one in states])
    x = np.concatenate(states)
    problems_found = []
    for positions, chosen in (("all", first | True), ("rest", ~first), ("first", first)):
        own = [row for row in rows if row["site"] == site and row["positions"] == positions]
        if chosen.sum() < 2:
            continue
        spectra, neighbours = positions != "first", positions == "all"
        cloud = Cloud(x[chosen], sequence[chosen], 2.0**-53, spectra=spectra, neighbours=neighbours)
        problems_found += [f"{positions}: {problem}" for problem in problems(own, cloud)]
    return problems_found
