"""One pass over a model's attention, and the rows that it becomes, against the library's own attention matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.numpy import load_file, save_file

import zoo
from anisoscope.accumulate.keys import group_of, sequence_keys
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.errors import ModelError
from anisoscope.inference.jackknife import jackknife
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture
from anisoscope.models.batches.plan import Batches, make_batches
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.table import Row
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.studies.attention.removal import removal_effects
from anisoscope.studies.attention.rows import attention_rows, drift_directions, head_directions

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
WORDS = ("queries", "keys", "drift", "together", "while", "attention", "grows", "sharp", "entropy", "falls", "slowly")


@cache
def _source(modality: str) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    if modality == "text":
        items: list[Any] = [Document(str(k), " ".join(rng.choice(WORDS, size=rng.integers(4, 12)))) for k in range(24)]
    elif modality == "speech":
        items = [Clip(str(k), rng.standard_normal(6000, dtype=np.float32) / 10, 16000) for k in range(4)]
    else:
        items = [Picture(str(k), Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8))) for k in range(4)]
    return MemorySource(items, modality=modality, name="test")  # type: ignore[arg-type]


def measure_attention(model: OpenModel, batches: Any, **options: Any) -> AttentionSums:
    """The sums of attention over batches."""
    sums = AttentionSums(**options)
    for _, batch in batches:
        with torch.inference_mode(), sums.watch(model, batch):
            model.module(**model_inputs(model.module, batch.inputs))
    return sums


@cache
def _model(name: str) -> OpenModel:
    return open_model(zoo.module(name), processor=zoo.processor(name))


def _batches(model: OpenModel, **options: Any) -> Batches:
    if model.modality == "text":
        options = {"length": 24, "batch_tokens": 200, "limit": 6 if model.family == "canine" else None, **options}
    return make_batches(model, _source(model.modality), **options)


@cache
def _measured(name: str) -> tuple[AttentionSums, list[Row]]:
    model = _model(name)
    sums = measure_attention(model, _batches(model))
    return sums, attention_rows(
        sums.heads, sums.rows, like=Row(model=name, protocol=sums.about()["protocol"]["attention"])
    )


def _of(rows: list[Row], site: str) -> dict[str, Row]:
    return {row.metric: row for row in rows if row.site == site}


METRICS = {
    "query_key_cosine",
    "query_key_dot",
    "query_drift_ratio",
    "key_drift_ratio",
    "query_mean_cosine",
    "key_mean_cosine",
    "entropy",
    "entropy_normalised",
    "max_probability",
    "median_probability",
    "min_probability",
    "sequence_max",
    "sequence_min",
    "sink_share",
    "self_share",
    "sink_alpha",
    "sink_epsilon",
    "score_mean",
    "score_sd",
    "score_variance",
    "salience_variance",
    "content_variance",
    "cross_variance",
    "salience_share",
    "entropy_collapse",
    "one_key_share",
    "output_value_cosine",
    *(f"{side}_norm" for side in ("query", "key", "value")),
}
PEAKS = {"max_logit", *(f"max_logit_{part}" for part in ("means", "query", "salience", "content"))}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_every_metric_of_every_head_and_layer(name: str) -> None:
    _, rows = _measured(name)
    sites = [f"block.{k}{head}" for k in range(3) for head in ("", *(f".head.{h}" for h in range(4)))]
    assert {row.site for row in rows} == set(sites)
    for site in sites:
        found = _of(rows, site)
        assert set(found) == METRICS | PEAKS
        found = {metric: row for metric, row in found.items() if metric in METRICS}  # a maximum has no interval
        assert all(row.value is not None and np.isfinite(row.value) for row in found.values())
        assert all(row.low is not None and row.high is not None for row in found.values())
        assert all(row.low <= row.value <= row.high for row in found.values())  # type: ignore[operator]
        assert all(row.layer == int(site.split(".")[1]) and row.model == name for row in found.values())
    assert _of(rows, "block.1.head.3")["entropy"].head == 3
    assert "reads key head 1" in _of(rows, "block.1.head.3")["entropy"].note or name != "llama"


def test_a_layer_is_the_mean_of_its_heads() -> None:
    _, rows = _measured("llama")
    for metric, layer in _of(rows, "block.2").items():
        if metric in PEAKS:
            continue
        heads = [_of(rows, f"block.2.head.{h}")[metric].value for h in range(4)]
        assert layer.value == pytest.approx(np.mean(heads))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_rows_equal_the_librarys_attention_matrices(name: str) -> None:
    _, rows = _measured(name)
    model, module = _model(name), zoo.module(name)
    module.set_attn_implementation("eager")
    found: dict[str, list[np.ndarray]] = {metric: [] for metric in ("entropy", "max_probability", "min_probability")}
    found |= {metric: [] for metric in ("median_probability", "sink_share", "self_share", "entropy_normalised")}
    alphas: list[np.ndarray] = []
    for _, batch in _batches(model):
        with torch.no_grad():
            attention = module(**batch.inputs, output_attentions=True).attentions[1].double().numpy()
        for sequence, valid in zip(attention, batch.valid.numpy(), strict=True):
            n = int(valid.sum())
            alphas.append(sequence[:, :n, 0].mean(1))
            for i in range(n):
                p = sequence[:, i, : i + 1] if name == "gpt2" else sequence[:, i, :n]  # (heads, visible)
                if p.shape[1] < 2:
                    continue
                entropy = -np.sum(p * np.log(p), axis=1)
                values = (entropy, p.max(1), p.min(1), np.median(p, 1), p[:, 0], p[:, i], entropy / np.log(p.shape[1]))
                for metric, value in zip(found, values, strict=True):
                    found[metric].append(value)
    for head in range(4):
        site = _of(rows, f"block.1.head.{head}")
        for metric, values in found.items():
            assert site[metric].value == pytest.approx(np.mean(values, axis=0)[head], rel=1e-5), metric
            assert site[metric].n == len(values)
        assert site["sink_alpha"].value == pytest.approx(np.mean(alphas, axis=0)[head], rel=1e-5)
        assert site["sink_epsilon"].value == pytest.approx(np.mean(np.array(alphas) > 0.3, axis=0)[head])
        assert site["sink_alpha"].n == len(alphas)


def test_means_of_queries_and_keys_equal_the_projections() -> None:
    _, rows = _measured("bert")
    module, model = zoo.module("bert"), _model("bert")
    kept: dict[str, list[torch.Tensor]] = {"query": [], "key": []}
    for side, store in kept.items():
        part = getattr(module.encoder.layer[2].attention.self, side)
        part.register_forward_hook(lambda _, __, out, store=store: store.append(out))
    clouds: dict[str, list[np.ndarray]] = {"query": [], "key": []}
    for _, batch in _batches(model):
        with torch.no_grad():
            module(**batch.inputs)
        for side, store in kept.items():
            clouds[side].append(store.pop()[batch.valid].double().unflatten(-1, (4, 8)).numpy())
    query, key = (np.concatenate(clouds[side]) for side in ("query", "key"))  # (n, heads, d)
    for head in range(4):
        site = _of(rows, f"block.2.head.{head}")
        q, k = query[:, head], key[:, head]
        dot = q.mean(0) @ k.mean(0)
        cosine = dot / np.linalg.norm(q.mean(0)) / np.linalg.norm(k.mean(0))
        unit = q / np.linalg.norm(q, axis=1, keepdims=True)
        pairs = unit @ unit.T
        assert site["query_key_dot"].value == pytest.approx(dot, rel=1e-5)
        assert site["query_key_cosine"].value == pytest.approx(cosine, rel=1e-5)
        assert site["query_drift_ratio"].value == pytest.approx(np.sum(q.mean(0) ** 2) / np.mean(np.sum(q**2, 1)))
        assert site["key_drift_ratio"].value == pytest.approx(np.sum(k.mean(0) ** 2) / np.mean(np.sum(k**2, 1)))
        mean = (pairs.sum() - len(q)) / len(q) / (len(q) - 1)
        assert site["query_mean_cosine"].value == pytest.approx(mean, rel=1e-5)
        assert site["query_mean_cosine"].n == len(q)


def test_nulls_are_uniform_attention_and_unrelated_directions() -> None:
    _, rows = _measured("gpt2")
    site = _of(rows, "block.0.head.0")
    lengths = np.concatenate([np.arange(2, n + 1) for n in _lengths("gpt2")])  # of causal rows
    assert site["entropy"].null == pytest.approx(np.log(lengths).mean())
    assert site["max_probability"].null == pytest.approx((1 / lengths).mean())
    assert site["entropy"].n == len(lengths)
    assert site["entropy"].note == f"{len(_lengths('gpt2'))} rows of one key left out"
    assert site["query_key_cosine"].null == 0
    assert "null sd 0.354" in site["query_key_cosine"].note
    assert site["query_drift_ratio"].null == pytest.approx(1 / sum(_lengths("gpt2")))


def _lengths(name: str) -> list[int]:
    return [int(n) for _, batch in _batches(_model(name)) for n in batch.valid.sum(1)]


def test_shards_merge_to_the_whole() -> None:
    model = _model("llama")
    whole, rows = _measured("llama")
    shards = [measure_attention(model, [pair]) for pair in _batches(model)]
    assert len(shards) > 2
    merged = AttentionSums()
    merged.load(shards[-1].state())
    for shard in shards[:-1]:
        merged.merge(shard)
    for name, expected in whole.state().items():
        np.testing.assert_allclose(merged.state()[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
    for found, row in zip(attention_rows(merged.heads, merged.rows), rows, strict=True):
        assert found.value == pytest.approx(row.value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("metric", "groups"), [("entropy", 32), ("query_key_cosine", 32), ("salience_share", 8)])
def test_intervals_are_those_of_leaving_groups_of_sequences_out(metric: str, groups: int) -> None:
    site = "block.1.head.2"
    keys = sequence_keys(_by_document())
    group = group_of(keys) % groups
    sizes = [sum(sums.rows["block.1"].sums["rows"].sum().item() for sums in _chosen(group == g)) for g in range(groups)]
    left = [_of(_merged(group != g), site)[metric].value for g in range(groups)]
    full = _of(_measured("bert")[1], site)[metric]
    low, high = jackknife(np.array(left, float), full.value, np.array(sizes, float))  # type: ignore[arg-type]
    assert (full.low, full.high) == (pytest.approx(low), pytest.approx(high))


@cache
def _by_document() -> dict[str, AttentionSums]:
    model = _model("bert")
    sources = {item.key: MemorySource([item], modality="text", name="one") for item in _source("text")}
    return {key: measure_attention(model, make_batches(model, one, length=24)) for key, one in sources.items()}


def _chosen(kept: np.ndarray) -> list[AttentionSums]:
    return [sums for sums, keep in zip(_by_document().values(), kept, strict=True) if keep]


def _merged(kept: np.ndarray) -> list[Row]:
    merged = AttentionSums()
    for sums in _chosen(kept):
        merged.load(sums.state())
    return attention_rows(merged.heads, merged.rows)


def test_few_sequences_have_no_interval() -> None:
    model = _model("bert")
    batches = make_batches(model, _source("text"), length=24, limit=2)
    sums = measure_attention(model, batches)
    rows = attention_rows(sums.heads, sums.rows)
    assert all(row.value is not None for row in rows)
    assert {(row.low, row.high) for row in rows} == {(None, None)}


@pytest.mark.parametrize(
    "name", ["t5", "whisper", "canine", "mpnet", "cvt", "segformer", "vit", "wav2vec2", "modernbert"]
)
def test_other_architectures(name: str) -> None:
    sums, rows = _measured(name)
    assert set(sums.heads) == set(sums.rows)
    finite = [row for row in rows if row.value is not None and np.isfinite(row.value)]
    assert len(finite) == len(rows) > 0
    for row in rows:
        if row.metric == "entropy_normalised":
            assert 0 < row.value <= 1 + 1e-6  # type: ignore[operator]
        if row.metric == "salience_share":
            assert 0 <= row.value <= 1  # type: ignore[operator]


def test_sites_and_layers_of_stages_and_cross_attention() -> None:
    layers = {row.site: row.layer for row in _measured("segformer")[1] if row.head is None}
    assert layers == {
        "stage.0.block.0": 0,
        "stage.0.block.1": 1,
        "stage.1.block.0": 2,
        "stage.1.block.1": 3,
        "stage.2.block.0": 4,
        "stage.3.block.0": 5,
    }
    crossed = _of(_measured("t5")[1], "decoder.block.1.cross")
    assert crossed["entropy"].layer == 1
    assert "self_share" not in crossed
    local = _of(_measured("canine")[1], "char.block.0")
    assert "sink_share" not in local  # windows have no first key
    assert "self_share" in local


def test_whisper_counts_the_positions_that_hear_speech() -> None:
    sums, _ = _measured("whisper")
    encoder, model = sums.heads["encoder.block.0"], _model("whisper")
    hidden = HiddenCapture(model.module, sites="encoder.block.0")
    n = 0
    for _, batch in _batches(model):
        counted: list[int] = []
        hidden.run(batch, lambda _, vectors, __, counted=counted: counted.append(len(vectors)))
        n += sum(counted)
    assert encoder.queries.n.sum() == encoder.keys.n.sum() == n < 4 * 100
    assert sums.rows["encoder.block.0"].sums["rows"].sum() == n
    visible = sums.rows["encoder.block.0"].sums["inverse_visible"].sum() / n
    assert float(visible) == pytest.approx(1 / 100)  # rows see the whole window


def test_padding_that_the_model_is_not_told_of_is_left_out() -> None:
    model = _model("t5")
    _, batch = next(iter(_batches(model)))
    shorter = batch.decoder_valid.clone()  # type: ignore[union-attr]
    shorter[:, 4:] = False
    inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "decoder_attention_mask"}
    sums = measure_attention(model, [(0, replace(batch, inputs=inputs, decoder_valid=shorter))])
    n = int(shorter.sum())
    for site in ("decoder.block.0", "decoder.block.0.cross"):
        assert sums.heads[site].queries.n.sum() == n
        assert sums.rows[site].sums["rows"].sum() + sums.rows[site].sums["one_key_rows"].sum() == n
    assert sums.heads["decoder.block.0"].keys.n.sum() == n


def test_before_rotation_heads_change_and_rows_do_not() -> None:
    model = _model("llama")
    after, rows = _measured("llama")
    before = measure_attention(model, _batches(model), before_rotary=True)
    table = attention_rows(before.heads, before.rows)
    assert "before rotation" in before.about()["protocol"]["attention"]
    one, other = _of(rows, "block.0.head.1"), _of(table, "block.0.head.1")
    assert one["query_key_cosine"].value != pytest.approx(other["query_key_cosine"].value, abs=1e-3)
    assert one["query_drift_ratio"].value != pytest.approx(other["query_drift_ratio"].value, abs=1e-3)
    for metric in ("entropy", "salience_share", "score_variance"):
        assert one[metric].value == pytest.approx(other[metric].value)
    np.testing.assert_allclose(before.heads["block.0"].queries.norm2, after.heads["block.0"].queries.norm2, rtol=1e-5)


def test_attention_and_hidden_states_in_one_pass() -> None:
    model = _model("bert")
    whole, _ = _measured("bert")
    hidden, sums, sites = HiddenCapture(model.module), AttentionSums(), set()
    for _, batch in _batches(model):
        with sums.watch(model, batch):
            hidden.run(batch, lambda site, *_: sites.add(site))
    assert sites == {"embeddings", *(f"block.{k}" for k in range(3))}
    for name, expected in whole.state().items():
        np.testing.assert_allclose(sums.state()[name], expected, err_msg=name)


def test_no_data_and_no_attention_are_errors() -> None:
    assert measure_attention(_model("bert"), []).heads == {}
    with pytest.raises(ModelError, match="no queries and keys here"):
        measure_attention(_model("resnet"), _batches(_model("resnet")))


# -- directions --------------------------------------------------------------------------------------------------------


def test_head_directions_are_the_svd_of_all_queries_and_keys() -> None:
    model = _model("llama")
    sums = measure_attention(model, _batches(model), sample=10_000)  # the sample holds every vector
    heads = sums.heads["block.1"]
    queries, keys = heads.queries.points(), np.repeat(heads.keys.points(), 2, axis=0)
    assert queries.shape[1] == heads.queries.n.sum()
    for which, cloud in (("union", np.concatenate([queries, keys], 1)), ("keys", keys), ("queries", queries)):
        found = head_directions([heads, heads], which=which)  # type: ignore[arg-type]
        for head in range(4):
            twice = np.concatenate([cloud[head], cloud[head]]).astype(np.float64)
            _, values, vectors = np.linalg.svd(twice, full_matrices=False)
            np.testing.assert_allclose(found.singular_values[head], values, rtol=1e-5)
            np.testing.assert_allclose(np.abs((found.vectors[head] * vectors).sum(-1))[:3], 1.0, atol=1e-4)


def test_drift_directions_are_kept_as_safetensors(tmp_path) -> None:
    sums, _ = _measured("llama")
    save_file(drift_directions(sums.heads), tmp_path / "directions.safetensors")
    found = load_file(tmp_path / "directions.safetensors")
    assert set(found) == {f"block.{k}.{what}" for k in range(3) for what in ("query", "key", "q_filter")}
    assert found["block.0.query"].shape == (4, 8)
    assert found["block.0.key"].shape == found["block.0.q_filter"].shape == (2, 8)
    np.testing.assert_allclose(found["block.0.q_filter"][1], -found["block.0.query"][2:].mean(0))


# -- the mean key is invisible to softmax ------------------------------------------------------------------------------


def test_removing_the_mean_key_changes_nothing_the_mean_query_does() -> None:
    for name in ("bert", "gpt2", "llama"):  # also with rotary positions, for the vectors that are scored
        model = _model(name)
        _, batch = next(iter(_batches(model)))
        effects = removal_effects(model, batch)
        assert list(effects) == ["block.0", "block.1", "block.2"]
        assert all(effect.key < 1e-12 and effect.query > 1e-3 for effect in effects.values())


def _without_mean_key(model: OpenModel, keys: list[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's output, and its output when the mean key (before rotation) is taken from the bias of each layer."""
    _, batch = next(iter(_batches(model)))
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
