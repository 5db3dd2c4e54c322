"""Directions of heads, and what becomes of the output when the mean key or the mean query is taken away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import zoo
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.geometry.queries_keys import union_directions
from anisoscope.models.open import OpenModel, open_model
from anisoscope.studies.attention.removal import _changes, removal_effects
from anisoscope.studies.attention.rows import drift_directions
from studies.attention.passes import batches_of, measure_attention, measured, model_of

torch.set_num_threads(1)


def test_directions_of_the_sums_are_the_svd_of_all_queries_and_keys() -> None:
    model = model_of("llama")
    sums = measure_attention(model, batches_of(model), sample=10_000)  # the sample holds every vector
    heads = sums.heads["block.1"]
    queries, keys = heads.queries.points(), np.repeat(heads.keys.points(), 2, axis=0)
    assert queries.shape[1] == heads.queries.n.sum()
    sums_of = {"queries": heads.queries.second.numpy(), "keys": np.repeat(heads.keys.second.numpy(), 2, axis=0)}
    clouds = {"queries": queries, "keys": keys, "queries keys": np.concatenate([queries, keys], 1)}
    for sides, cloud in clouds.items():
        moments = [sums_of[side] for side in sides.split()]
        found = union_directions(*moments, *moments)
        for head in range(4):
            twice = np.concatenate([cloud[head], cloud[head]]).astype(np.float64)
            _, values, vectors = np.linalg.svd(twice, full_matrices=False)
            np.testing.assert_allclose(found.singular_values[head], values, rtol=1e-5)
            np.testing.assert_allclose(np.abs((found.vectors[head] * vectors).sum(-1))[:3], 1.0, atol=1e-4)


def test_drift_directions_are_kept_as_safetensors(tmp_path) -> None:
    sums, _ = measured("llama")
    save_file(drift_directions(sums.heads), tmp_path / "directions.safetensors")
    found = load_file(tmp_path / "directions.safetensors")
    assert set(found) == {f"block.{k}.{what}" for k in range(3) for what in ("query", "key", "q_filter")}
    assert found["block.0.query"].shape == (4, 8)
    assert found["block.0.key"].shape == found["block.0.q_filter"].shape == (2, 8)
    np.testing.assert_allclose(found["block.0.q_filter"][1], -found["block.0.query"][2:].mean(0))


# -- the mean key is invisible to softmax ------------------------------------------------------------------------------


def test_removing_the_mean_key_changes_nothing_the_mean_query_does() -> None:
    for name in ("bert", "gpt2", "llama"):  # also with rotary positions, for the vectors that are scored
        model = model_of(name)
        _, batch = next(iter(batches_of(model)))
        value = {(site, metric): value for site, metric, value in removal_effects(model, batch)}
        assert list(dict.fromkeys(site for site, _ in value)) == ["block.0", "block.1", "block.2"]
        for site, _ in value:
            assert value[site, "mean_key_removal"] < 1e-12
            assert value[site, "mean_query_removal"] > 1e-3


def test_removal_keeps_position_biases() -> None:
    """Before, the probabilities of T5 were those of its scores without their biases."""
    model = model_of("t5")
    _, batch = next(iter(batches_of(model)))
    found = {(site, metric): value for site, metric, value in removal_effects(model, batch)}
    calls: dict[str, AttentionCall] = {}
    with torch.inference_mode(), AttentionCapture(model.module, calls.__setitem__):
        model.module(**model_inputs(model.module, batch.inputs))
    assert len(calls) == 7
    for site, call in calls.items():
        bias = torch.zeros(1, 1, 1, call.keys.shape[2]) if call.position_bias is None else call.position_bias
        greatest = 0.0
        for row in range(len(batch)):
            rows, keys = call.valid_queries[row], call.valid_keys[row]
            q, k = call.queries[row][:, rows].double(), call.keys[row][:, keys].double()
            own = bias.expand(len(batch), -1, len(rows), -1)[row][:, rows][..., keys].double()
            hidden = torch.zeros(len(q), q.shape[1], k.shape[1], dtype=torch.bool)
            if call.visible is not None:
                hidden |= ~call.visible.expand(len(batch), len(rows), -1)[row][rows][:, keys]
            before, after = (
                (x @ k.mT + own).masked_fill(hidden, -torch.inf).softmax(-1) for x in (q, q - q.mean(1, keepdim=True))
            )
            greatest = max(greatest, float((after - before).abs().max()))
        assert found[site, "mean_query_removal"] == pytest.approx(greatest, rel=1e-6)
        assert found[site, "mean_key_removal"] < 1e-12


def test_a_soft_cap_lets_the_mean_key_be_seen() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (2 + torch.randn(1, 2, 6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    counts = torch.ones(1, 6, dtype=torch.bool)
    call = AttentionCall(q, k, "self", counts, counts, None, 1.0, q, k, softcap=3.0)
    capped = [(3 * torch.tanh(q @ one.mT / 3)).softmax(-1) for one in (k, k - k.mean(2, keepdim=True))]
    assert _changes(call)[0] == pytest.approx(float((capped[1] - capped[0]).abs().max()))
    assert _changes(replace(call, softcap=None))[0] < 1e-12


def _without_mean_key(model: OpenModel, keys: list[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's output, and its output when the mean key (before rotation) is taken from the bias of each layer."""
    _, batch = next(iter(batches_of(model)))
    expected = model.module(**batch.inputs).last_hidden_state[batch.valid]
    for layer, projection in enumerate(keys):
        sums = measure_attention(model, [(0, batch)], before_rotary=True)
        cloud = sums.heads[f"block.{layer}"].keys
        mean = cloud.total.sum(0) / cloud.n.sum()
        assert mean.norm() > 0.1
        projection.bias -= mean.flatten().float()
    return expected, model.module(**batch.inputs).last_hidden_state[batch.valid]


@torch.no_grad()
def test_without_rotation_the_mean_key_of_a_model_is_free() -> None:
    model = open_model(zoo.module("bert"), processor=zoo.processor("bert"))
    layers = model.module.encoder.layer  # type: ignore[union-attr]
    before, after = _without_mean_key(model, [layer.attention.self.key for layer in layers])  # type: ignore[union-attr]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


@torch.no_grad()
def test_with_rotation_the_mean_key_before_it_is_not() -> None:
    config = zoo.config("llama")
    config.attention_bias = True
    torch.manual_seed(0)
    module = transformers.LlamaModel(config).eval()
    for layer in module.layers:
        torch.nn.init.normal_(layer.self_attn.k_proj.bias)
        layer.self_attn.q_proj.weight.mul_(20)
    model = open_model(module, processor=zoo.processor("llama"))
    before, after = _without_mean_key(model, [layer.self_attn.k_proj for layer in module.layers])
    assert (after - before).abs().max() > 0.01
