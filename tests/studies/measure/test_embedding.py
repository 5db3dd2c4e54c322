"""The vector of a whole text is what `SentenceTransformer.encode` gives, in the same pass as the layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from torch import nn

import anisoscope
import zoo
from anisoscope.accumulate.keys import sequence_key
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.embedding import embed
from anisoscope.errors import ModelError, UsageError
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.encoders import MODES, Encoder
from anisoscope.runs.work.collected import split
from anisoscope.studies.compare.differences import moments_of
from encoders import MINILM, REAL, TEXTS, edit_json, sentence_folder, tiny_bert

torch.set_num_threads(1)


def embedded(folder: Path, texts: list[str], **settings: Any) -> np.ndarray:
    """The vectors of the texts, in order, from the reservoir of a measured run."""
    source = MemorySource([Document(f"text {k}", text) for k, text in enumerate(texts)], modality="text", name="texts")
    found = anisoscope.measure(str(folder), source, sites=["embedding"], neighbours=False, **settings)
    state = {key: part for key, part in split(found.state).items() if key.endswith("|embedding|embedding")}
    sample = Moments.from_state(next(iter(state.values()))).reservoir.sample()
    order = {key: k for k, key in enumerate(sample.keys.tolist())}
    return sample.x[[order[sequence_key(f"text {k}")] for k in range(len(texts))]]


def encode(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


def assert_equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-6 * max(1.0, float(np.abs(theirs).max())))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("normalize", [True, False])
def test_every_mode_of_pooling_is_that_of_the_library(tmp_path, mode, normalize):
    folder = sentence_folder(tmp_path / "model", pooling=mode, normalize=normalize)
    assert_equal(embedded(folder, TEXTS), encode(folder, TEXTS))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("prompt", [0, 2])
def test_padding_may_stand_on_either_side(mode, side, prompt):
    states, lengths = torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 7, 4, 5])
    places = torch.arange(7).flip(0) if side == "left" else torch.arange(7)
    valid = places < lengths[:, None]
    theirs = Pooling(16, pooling_mode=mode, include_prompt=not prompt)
    given = {"token_embeddings": states, "attention_mask": valid.long(), "prompt_length": prompt}
    ours = embed(Encoder((mode,), prompt_tokens=prompt), states, valid)
    assert_equal(ours.numpy(), theirs(given)["sentence_embedding"].numpy())


def test_modes_are_concatenated_in_the_order_of_the_library(tmp_path):
    folder = sentence_folder(tmp_path / "model", pooling=("max", "cls", "weightedmean"), normalize=False)
    ours = embedded(folder, TEXTS)
    assert ours.shape == (len(TEXTS), 48)
    assert_equal(ours, encode(folder, TEXTS))


def test_pooling_written_as_flags_is_read(tmp_path):
    folder = sentence_folder(tmp_path / "model", normalize=False)
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "word_embedding_dimension": 16}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert_equal(embedded(folder, TEXTS), encode(folder, TEXTS))


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Identity(), nn.GELU(), None])
@pytest.mark.parametrize(("width", "residual"), [(8, False), (8, True), (16, True)])
def test_dense_layers_with_activation_and_residual(tmp_path, activation, width, residual):
    torch.manual_seed(1)
    dense = Dense(16, width, activation_function=activation, use_residual=residual)
    folder = sentence_folder(tmp_path / "model", dense=(dense,))
    assert_equal(embedded(folder, TEXTS), encode(folder, TEXTS))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "weightedmean"])
def test_prompts_lead_the_text_and_stay_out_of_the_pool_where_the_model_says_so(tmp_path, include, mode):
    prompts = {"query": "query : ", "document": "document : "}
    folder = sentence_folder(
        tmp_path / "model", pooling=mode, include_prompt=include, prompts=prompts, default_prompt="document"
    )
    assert_equal(embedded(folder, TEXTS), encode(folder, TEXTS))
    assert_equal(embedded(folder, TEXTS, prompt="query"), encode(folder, TEXTS, prompt_name="query"))
    assert_equal(embedded(folder, TEXTS, prompt="red : "), encode(folder, TEXTS, prompt="red : "))
    assert np.abs(embedded(folder, TEXTS) - embedded(folder, TEXTS, prompt="query")).max() > 1e-3


def test_a_prompt_that_the_model_does_not_have_is_refused(tmp_path):
    folder = sentence_folder(tmp_path / "model", prompts={"query": "query : "})
    with pytest.raises(UsageError, match="no prompt of this name"):
        embedded(folder, TEXTS, prompt="quary")


@pytest.mark.parametrize(("name", "options"), [("gpt2", {}), ("gpt2", {"pool": "none"}), ("vit", {})])
def test_a_prompt_that_nothing_would_read_is_refused(name, options, tmp_path):
    with pytest.raises(UsageError, match="this model makes none"):
        anisoscope.measure(zoo.save(name, tmp_path / name), prompt="query: ", **options)


def test_lower_case_and_the_old_layout_with_the_transformer_in_a_folder(tmp_path):
    folder = sentence_folder(tmp_path / "model", lower=True)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            shutil.move(file, inner / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert_equal(embedded(folder, TEXTS), encode(folder, TEXTS))
    mixed = embedded(folder, ["The Cat", "the cat"])
    assert_equal(mixed[0], mixed[1])


def test_a_long_text_counts_once_cut_where_the_library_cuts_it_while_its_layers_see_all_of_it(tmp_path):
    folder = sentence_folder(tmp_path / "model", length=12)
    found = anisoscope.measure(str(folder), TEXTS, neighbours=False)
    n = {row.site: row.n for row in found.rows if row.metric == "mean_cosine" and row.positions == "all"}
    assert list(n) == ["embeddings", "block.0", "block.1", "embedding"]
    assert n["embedding"] == len(TEXTS)
    assert n["block.1"] > len(TEXTS) * 12 / 2
    assert next(row for row in found.rows if row.metric == "spearman_drift_norm").n == 3  # no layer


def test_where_only_whole_texts_are_looked_at_only_their_beginnings_run(tmp_path):
    folder = sentence_folder(tmp_path / "model", length=12)
    found = anisoscope.measure(str(folder), TEXTS, sites=["embedding"], neighbours=False)
    whole = anisoscope.measure(str(folder), TEXTS, neighbours=False)
    assert next(iter(found.data.values()))["windows"] == len(TEXTS) < next(iter(whole.data.values()))["windows"]
    cosine = found.value("mean_cosine", site="embedding")
    assert cosine == pytest.approx(whole.value("mean_cosine", site="embedding"), abs=1e-6)


@pytest.mark.parametrize("pool", ["mean", "cls", "last", "max", "weighted"])
def test_any_other_text_model_is_pooled_as_asked(tmp_path, pool):
    from anisoscope.models.encoders import POOLS

    folder = sentence_folder(tmp_path / "model", pooling=POOLS[pool], normalize=False, length=64)
    plain = tiny_bert(tmp_path / "plain")
    assert_equal(embedded(plain, TEXTS, pool=pool), encode(folder, TEXTS))


def test_without_a_way_of_pooling_the_site_is_refused_and_otherwise_left_out(tmp_path):
    plain = tiny_bert(tmp_path / "plain")
    with pytest.raises(UsageError, match="does not say how to make one vector"):
        anisoscope.measure(str(plain), TEXTS, sites=["embedding"])
    assert "embedding" not in anisoscope.measure(str(plain), TEXTS, neighbours=False).sites()
    folder = sentence_folder(tmp_path / "model")
    assert "embedding" not in anisoscope.measure(str(folder), TEXTS, neighbours=False, pool="none").sites()
    assert anisoscope.measure(str(folder), TEXTS, neighbours=False, sites=["block.*"]).sites()[-2:] == [
        "block.1",
        "layers",
    ]


def test_an_unknown_part_is_not_guessed_at(tmp_path):
    folder = sentence_folder(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    found = anisoscope.measure(str(folder), TEXTS, neighbours=False)
    assert "embedding" not in found.sites()
    assert any("no embedding: modules.json lists Transformer, Pooling, LSTM" in note for note in found.notes)


@pytest.mark.parametrize("path", ["../elsewhere", "parts/1_Pooling", "1_Pooling/"])
def test_a_part_that_no_fingerprint_covers_is_refused(tmp_path, path):
    folder = sentence_folder(tmp_path / "model")
    for copy in (tmp_path / "elsewhere", folder / "parts/1_Pooling"):
        shutil.copytree(folder / "1_Pooling", copy)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"modules\.json names a file that does not lie beside it"):
        anisoscope.measure(str(folder), TEXTS, neighbours=False)


def test_an_activation_from_elsewhere_is_never_imported(tmp_path):
    folder = sentence_folder(tmp_path / "model", dense=(Dense(16, 8),))
    edit_json(folder / "2_Dense" / "config.json", activation_function="os.system")
    found = anisoscope.measure(str(folder), TEXTS, neighbours=False)
    assert any("os.system" in note for note in found.notes)


def test_windows_beyond_what_the_model_embeds_are_refused(tmp_path):
    folder = sentence_folder(tmp_path / "model", length=12)
    with pytest.raises(UsageError, match="longer than the texts that the model embeds"):
        anisoscope.measure(str(folder), TEXTS, length=20)


def test_shards_add_up_and_runs_compare_at_the_embedding(tmp_path):
    folder = sentence_folder(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    for k in range(40):
        (tmp_path / "texts" / f"{k}.txt").write_text(" ".join(np.random.default_rng(k).permutation(TEXTS[0].split())))
    asked = {"sites": ["embedding"], "neighbours": False, "documents": "file"}
    whole = anisoscope.measure(str(folder), tmp_path / "texts", **asked, out=tmp_path / "whole")
    shards = [
        anisoscope.measure(str(folder), tmp_path / "texts", **asked, out=tmp_path / f"{k}", shard=f"{k}/2").run
        for k in range(2)
    ]
    merged = anisoscope.merge([run for run in shards if run is not None], tmp_path / "merged")
    assert merged.value("mean_cosine", site="embedding") == pytest.approx(whole.value("mean_cosine", site="embedding"))
    assert whole.run is not None
    assert list(moments_of(whole.run)) == ["embedding"]
    other = anisoscope.measure(str(folder), tmp_path / "texts", **asked, prompt="red : ", out=tmp_path / "other")
    moved = anisoscope.compare(whole, other)
    assert moved.value("mean_cosine", site="embedding") == pytest.approx(
        other.value("mean_cosine", site="embedding") - whole.value("mean_cosine", site="embedding")
    )


@pytest.mark.parametrize(("folder", "prompt"), [(MINILM, "query: "), *((folder, None) for folder in REAL)])
def test_real_encoders_with_and_without_a_prompt(folder, prompt):
    if not (folder / "modules.json").is_file():
        pytest.skip("python scripts/fetch_real_weights.py /tmp/weights minilm mpnet sre gte-small e5-small")
    texts = [
        "Every similarity is above 0.7.",
        "aaaaaa",
        "The ferry leaves the harbour at six; in winter it does not run on Sundays.",
        "A long text is cut. " * 100,
        "Ünïcödé, 漢字 and 👩‍🔬",
    ]
    asked = {} if prompt is None else {"prompt": prompt}
    assert_equal(embedded(folder, texts, **asked), encode(folder, texts, **asked))
