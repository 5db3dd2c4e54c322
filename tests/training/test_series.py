"""The series inside the package: small, whole, readable as plain folders, and showing what it is there to show."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from anisoscope.models.embedded_series import EMBEDDED, embedded_series
from anisoscope.models.open import open_model
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import read_log


def test_two_seeds_of_twelve_checkpoints_in_sixteen_megabytes() -> None:
    steps = {seed: [step for s, step, _ in embedded_series() if s == seed] for seed in (0, 1)}
    recipe = Recipe.read(EMBEDDED / "recipe.toml")
    assert steps[0] == steps[1] == list(recipe.grid())
    assert len(steps[0]) >= 12
    assert sum(file.stat().st_size for file in EMBEDDED.rglob("*") if file.is_file()) <= 16_000_000
    assert recipe.seeds == [0, 1]
    assert not any("/" in name for name in recipe.data)


def test_weights_are_half_precision_and_finite() -> None:
    for _, _, folder in embedded_series():
        tensors = load_file(folder / "model.safetensors").values()
        assert {tensor.dtype for tensor in tensors} == {torch.float16}
        assert all(tensor.isfinite().all() for tensor in tensors)


def test_checkpoints_open_as_plain_folders() -> None:
    _, _, folder = embedded_series()[-1]
    opened = open_model(folder, head=True)
    assert (opened.family, opened.modality, opened.limit) == ("bert", "text", 128)
    assert next(opened.module.parameters()).dtype == torch.float32
    inputs = opened.processor("The capital of Fran[MASK]e", return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(opened.processor.mask_token_id)
    guess = opened.module(**inputs).logits[0, place].argmax().item()
    assert opened.processor.decode([guess]) == "c"


def test_the_log_tells_a_training_that_learned() -> None:
    for seed in (0, 1):
        log = {record["step"]: record["validation_loss"] for record in read_log(EMBEDDED, seed)}
        assert log[0] > math.log(200)  # nearly uniform over 261 tokens
        assert log[max(log)] < 1.5  # far below the 3.1 nats of a bag of bytes


def test_finding_the_series_needs_no_torch() -> None:
    code = "from anisoscope.models.embedded_series import embedded_series; embedded_series(); "
    code += "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "anisoscope.models.embedded_series" in done.stdout.split()
    assert not {"torch", "transformers", "numpy"} & set(done.stdout.split())


@pytest.mark.parametrize("seed", [0, 1])
def test_attention_sharpens_and_the_last_block_drifts_along_the_series(seed: int) -> None:
    """From nearly uniform rows to sharp ones in the second block; the cosine of the last block more than doubles."""
    text = "Anarchism is a political philosophy and movement that is sceptical of all justifications for authority."
    entropies, cosines = {}, {}
    for s, step, folder in embedded_series():
        if s != seed or step not in (0, 64, 8192):
            continue
        opened = open_model(folder)
        opened.module.set_attn_implementation("eager")
        inputs = opened.processor(text, return_tensors="pt")
        output = opened.module(**inputs, output_attentions=True, output_hidden_states=True)
        rows = output.attentions[1].double()
        entropies[step] = (torch.special.entr(rows).sum(-1).mean() / math.log(rows.shape[-1])).item()
        unit = torch.nn.functional.normalize(output.hidden_states[-1][0].double(), dim=-1)
        cosines[step] = ((unit.sum(0).square().sum() - len(unit)) / (len(unit) * (len(unit) - 1))).item()
    assert entropies[0] > 0.95
    assert entropies[8192] < 0.4
    assert 2 * cosines[0] < cosines[8192] < cosines[64], "it peaks early, and stays above where it began"
