"""Opening a model: every architecture of the zoo from its published layout, and where it is looked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import zoo
from anisoscope.errors import ModelError, UsageError
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import open_model

BODIES = [name for name in zoo.NAMES if zoo.modality(name) != "composite"]
LIMITS = {"roberta": 128, "mpnet": 126, "t5": None, "byt5": None, "mamba": None, "canine": 2048, "falcon": 2048}
LIMITS |= {"character_bert": 128, "manta": 256}


# --- what opens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BODIES)
def test_every_architecture_opens_from_its_published_layout(name: str, tmp_path: Path) -> None:
    opened = open_model(zoo.save(name, tmp_path))
    expected = zoo.module(name).state_dict()
    weights = opened.module.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in weights if "pooler.dense" not in key)
    assert opened.modality == zoo.modality(name)
    assert not opened.module.training
    assert not any(weight.requires_grad for weight in opened.module.parameters())
    assert opened.family == zoo.config(name).model_type
    if opened.modality == "text":
        assert opened.limit == LIMITS.get(name, 128)
        assert opened.processor("Two of them are similar.")["input_ids"]
        assert opened.processor.pad_token is not None


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "gpt2", "llama", "t5", "whisper", "mamba", "character_bert", "manta"]
)
def test_head_opens_the_published_class_with_its_head(name: str, tmp_path: Path) -> None:
    opened = open_model(zoo.save(name, tmp_path), head=True)
    expected = zoo.module(name, head=True)
    assert type(opened.module) is type(expected)
    assert module_fingerprint(opened.module) == module_fingerprint(expected)


def test_a_head_that_the_checkpoint_lacks_is_refused(tmp_path: Path) -> None:
    zoo.module("bert").save_pretrained(tmp_path)
    zoo.processor("bert").save_pretrained(tmp_path)
    assert open_model(tmp_path).family == "bert"
    with pytest.raises(ModelError, match="would be random"):
        open_model(tmp_path, head=True)


def test_a_kind_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no language-model head"):
        open_model(zoo.save("resnet", tmp_path), head=True)


def test_one_checkpoint_is_always_one_model(bert: Path) -> None:
    """The pooler is not in the checkpoint; it must not make two openings differ, nor touch the caller's randomness."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = open_model(bert)
    assert torch.equal(torch.rand(3), expected)
    assert module_fingerprint(first.module) == module_fingerprint(open_model(bert).module)


@pytest.mark.parametrize("tower", ["text", "vision"])
def test_a_composite_model_opens_by_tower(tower: str, tmp_path: Path) -> None:
    opened = open_model(zoo.save("clip", tmp_path / "clip"), tower=tower)
    expected = getattr(zoo.module("clip"), f"{tower}_model").state_dict()
    assert opened.modality == tower
    assert opened.name == f"clip:{tower}"
    assert all(torch.equal(weight, expected[key]) for key, weight in opened.module.state_dict().items())
    live = open_model(zoo.module("clip"), processor=opened.processor, tower=tower)
    assert type(live.module) is type(opened.module)


def test_a_composite_model_without_a_tower_is_refused(tmp_path: Path) -> None:
    folder = zoo.save("clip", tmp_path)
    with pytest.raises(UsageError, match=r"tower='text' \| tower='vision'"):
        open_model(folder)
    with pytest.raises(UsageError, match="one tower"):
        open_model(zoo.save("gpt2", tmp_path / "gpt2"), tower="text")


def test_whisper_comes_with_both_parts_of_its_processor(tmp_path: Path) -> None:
    opened = open_model(zoo.save("whisper", tmp_path))
    assert opened.modality == "speech"
    assert opened.processor.tokenizer("hello")["input_ids"]
    assert opened.processor.feature_extractor.sampling_rate == 16_000


def test_pickled_weights_and_old_names_of_norms_open(copy: Path) -> None:
    """Checkpoints of 2019: one pickle, LayerNorm.gamma and .beta."""
    weights = load_file(copy / "model.safetensors")
    renamed = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for key, weight in weights.items()
    }
    (copy / "model.safetensors").unlink()
    torch.save(renamed, copy / "pytorch_model.bin")
    expected = zoo.module("bert").state_dict()
    opened = open_model(copy).module.state_dict()
    assert all(torch.equal(opened[key], expected[key]) for key in expected if "pooler" not in key)


def without_prefix_with_masks(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """gpt2: the body's names without its prefix, and the causal masks as buffers."""
    bare = {key.removeprefix("transformer."): weight for key, weight in weights.items()}
    return bare | {f"h.{block}.attn.bias": torch.ones(1, 1, 128, 128).tril() for block in range(3)}


def with_masks_and_frequencies(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pythia: masks and rotary frequencies as buffers."""
    block = {"bias": torch.ones(1, 1, 128, 128).tril(), "masked_bias": torch.tensor(-1e9)}
    block["rotary_emb.inv_freq"] = torch.ones(1)
    return weights | {f"gpt_neox.layers.{b}.attention.{k}": v.clone() for b in range(3) for k, v in block.items()}


def with_a_bias_of_cross_attention(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """t5-base: a table that is never used."""
    return weights | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 4)}


def with_old_weight_norm(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """wav2vec2-base: the length and direction of a kernel under their former names."""
    former = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    renamed = {}
    for key, weight in weights.items():
        for new, old in former.items():
            key = key.replace(new, old)
        renamed[key] = weight
    assert renamed.keys() != weights.keys()
    return renamed


@pytest.mark.parametrize(
    ("name", "quirk"),
    [
        ("gpt2", without_prefix_with_masks),
        ("gpt_neox", with_masks_and_frequencies),
        ("t5", with_a_bias_of_cross_attention),
        ("wav2vec2", with_old_weight_norm),
    ],
)
def test_quirks_of_published_files_do_no_harm(name: str, quirk: Callable[..., Any], tmp_path: Path) -> None:
    file = zoo.save(name, tmp_path) / "model.safetensors"
    weights = quirk(load_file(file))
    file.unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert module_fingerprint(open_model(tmp_path).module) == module_fingerprint(zoo.module(name))


def test_precision_is_float32_whatever_the_file_has(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    halves = {key: weight.bfloat16() for key, weight in load_file(bert / "model.safetensors").items()}
    save_file(halves, tmp_path / "model.safetensors", metadata={"format": "pt"})
    zoo.edit_config(tmp_path, dtype="bfloat16")
    assert {weight.dtype for weight in open_model(tmp_path).module.parameters()} == {torch.float32}
    assert {weight.dtype for weight in open_model(tmp_path, dtype="bfloat16").module.parameters()} == {torch.bfloat16}


def test_nothing_is_printed(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_model(bert)
    assert capfd.readouterr() == ("", "")


def test_a_live_module_opens_with_its_processor() -> None:
    module, tokenizer = zoo.module("roberta").train(), zoo.processor("roberta")
    opened = open_model(module, processor=tokenizer)
    assert opened.module is module
    assert not module.training
    assert (opened.modality, opened.family, opened.limit) == ("text", "roberta", 128)
    with pytest.raises(UsageError, match="needs its processor"):
        open_model(module)


def test_a_module_of_unknown_kind_needs_its_modality() -> None:
    module = torch.nn.Linear(3, 3)
    with pytest.raises(UsageError, match="cannot tell what Linear reads"):
        open_model(module, processor=object())
    assert open_model(module, processor=object(), modality="vision").modality == "vision"
    with pytest.raises(UsageError, match=r"text \| speech \| vision"):
        open_model(module, processor=object(), modality="smell")


# --- where it is looked for -----------------------------------------------------------------------------------------


def test_the_mirror_is_looked_in_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = zoo.save("gpt2", tmp_path / "mirror" / "owner" / "name", seed=1)
    early = zoo.save("gpt2", tmp_path / "mirror" / "owner" / "name@step1000", seed=2)
    zoo.save("gpt2", tmp_path / "owner" / "name", seed=3)
    monkeypatch.chdir(tmp_path)
    opened = open_model("owner/name", models_dir="mirror")
    assert (opened.name, opened.revision) == ("owner/name", None)
    assert module_fingerprint(opened.module) == module_fingerprint(open_model(final).module)
    monkeypatch.setenv("ANISOSCOPE_MODELS", str(tmp_path / "mirror"))
    opened = open_model("owner/name", revision="step1000")
    assert (opened.name, opened.revision) == ("owner/name", "step1000")
    assert module_fingerprint(opened.module) == module_fingerprint(open_model(early).module)


def test_the_mirror_knows_the_other_ids_of_a_model(tmp_path: Path) -> None:
    zoo.save("gpt2", tmp_path / "openai-community" / "gpt2")
    assert open_model("gpt2", models_dir=tmp_path).name == "gpt2"


def test_a_mirror_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such mirror"):
        open_model("gpt2", models_dir=tmp_path / "nowhere")


def test_a_folder_has_no_revisions(bert: Path) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        open_model(bert, revision="step1000")


@pytest.mark.parametrize(
    ("where", "message"),
    [("/nowhere/at/all", "no such folder"), ("a/b/c", "no such model"), ("x.gguf", "no such folder"), ("", "no name")],
)
def test_a_place_that_is_not_there(where: str, message: str) -> None:
    with pytest.raises((ModelError, UsageError), match=message):
        open_model(where)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing here")
    with pytest.raises(ModelError, match=r"no model in this folder(.|\n)*notes\.md"):
        open_model(tmp_path)


# --- equal checkpoints ----------------------------------------------------------------------------------------------


def test_hash_tells_checkpoints_apart_and_ignores_order() -> None:
    module = zoo.module("bert")
    reference = module_fingerprint(module)
    assert module_fingerprint(zoo.module("bert")) == reference
    assert module_fingerprint(zoo.module("bert", seed=1)) != reference
    assert module_fingerprint(module.double()) != reference

    class Pair(torch.nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            for name in names:
                self.register_parameter(name, torch.nn.Parameter(torch.full((2, 3), float(ord(name)))))

    assert module_fingerprint(Pair("ab")) == module_fingerprint(Pair("ba"))
    nudged = Pair("ab")
    nudged.get_parameter("a").data[1, 2] += 1e-6 * 128
    assert module_fingerprint(nudged) != module_fingerprint(Pair("ab"))


def test_the_zoo_says_what_it_opened() -> None:
    """The zoo's towers, bodies and heads are real classes of the library or of this package."""
    for name in zoo.NAMES:
        assert issubclass(type(zoo.config(name)), transformers.PretrainedConfig)


def small(kind: type[Any], **options: Any) -> Any:
    sizes = zoo.sizes()
    return kind(**sizes, vocab_size=325, max_position_embeddings=64, **options)


def test_ibert_opens_and_knows_its_limit(tmp_path: Path) -> None:
    """Its tables of positions are no `nn.Embedding`; with a padding row, 64 rows are 62 positions."""
    transformers.IBertModel(small(transformers.IBertConfig)).save_pretrained(tmp_path)
    assert open_model(tmp_path, processor=zoo.processor("bert")).limit == 62


def roformer_without(folder: Path, *parts: str) -> Path:
    """A RoFormer as it was published in 2021: its sinusoids are not in the checkpoint."""
    transformers.RoFormerModel(small(transformers.RoFormerConfig, embedding_size=16)).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    kept = {key: weight for key, weight in weights.items() if not any(part in key for part in parts)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_table_that_the_class_computes_may_be_missing(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    transformers.RoFormerModel(small(transformers.RoFormerConfig, embedding_size=16)).save_pretrained(whole)
    expected = load_file(whole / "model.safetensors")["encoder.embed_positions.weight"]
    opened = open_model(roformer_without(tmp_path / "old", "embed_positions"), processor=zoo.processor("bert"))
    assert torch.equal(opened.module.state_dict()["encoder.embed_positions.weight"], expected)


@pytest.mark.parametrize("part", ["layer.1.attention.self.query.weight", "embeddings.LayerNorm.weight", "query.bias"])
def test_what_was_learned_may_not_be_missing(part: str, tmp_path: Path) -> None:
    """A weight would be random; a norm would be one and a bias zero, which is not what was learned either."""
    with pytest.raises(ModelError, match="not in the checkpoint"):
        open_model(roformer_without(tmp_path, "embed_positions", part), processor=zoo.processor("bert"))
