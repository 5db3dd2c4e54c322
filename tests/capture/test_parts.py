"""What attention and MLP add, against the block's own arithmetic: its output is its input and its parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.hooks import hooked
from anisoscope.capture.parts import with_parts
from anisoscope.capture.sites import map_sites
from anisoscope.watch.probe import as_batch

WORDS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
OF_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
PRE_NORM = {
    "gpt2": OF_GPT2,
    "gptj": {**OF_GPT2, "rotary_dim": 4},
    "gpt_neo": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]]},
    "gpt_bigcode": OF_GPT2,
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "falcon": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "opt": {
        "hidden_size": 16,
        "ffn_dim": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 16,
    },
    "phi": SMALL,
    "gpt_neox": SMALL,
    "modernbert": {**SMALL, "cls_token_id": 1, "sep_token_id": 2},
    "llama": SMALL,
    "mistral": {**SMALL, "num_key_value_heads": 1},
    "qwen2": {**SMALL, "num_key_value_heads": 1},
    "gemma": {**SMALL, "num_key_value_heads": 1, "head_dim": 8},
    "gemma2": {**SMALL, "num_key_value_heads": 1, "head_dim": 8},
    "olmo2": SMALL,
    "phi3": SMALL,
}
IMAGE = {"image_size": 16, "patch_size": 8}
OF_IMAGES = ("vit", "dinov2", "deit", "clip_vision_model", "siglip_vision_model")


def _states(module: nn.Module, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}
    sites = with_parts(module, map_sites(module).sites)
    with torch.inference_mode(), hooked(module, sites, lambda site, state: seen.__setitem__(site.name, state.clone())):
        module(**inputs)
    return seen


def _model(family: str, **sizes: Any) -> nn.Module:
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **sizes)).eval()


def _mamba() -> nn.Module:
    return _model("mamba", hidden_size=16, num_hidden_layers=2, state_size=4, **WORDS)


def _adds_up(seen: dict[str, torch.Tensor], prefix: str = "") -> None:
    for block in range(2):
        entered = seen[f"{prefix}block.{block - 1}" if block else f"{prefix}embeddings"]
        name = f"{prefix}block.{block}"
        attention, mlp = seen[f"{name}.attention"], seen[f"{name}.mlp"].view_as(entered)
        torch.testing.assert_close(entered + attention + mlp, seen[name])


IDS = torch.arange(18).view(2, 9) % 40 + 3


@pytest.mark.parametrize("family", PRE_NORM)
def test_a_block_is_its_input_and_its_parts(family: str) -> None:
    _adds_up(_states(_model(family, **PRE_NORM[family], **WORDS), input_ids=IDS))


@pytest.mark.parametrize("family", OF_IMAGES)
def test_a_block_of_patches_is_its_input_and_its_parts(family: str) -> None:
    _adds_up(_states(_model(family, **SMALL, **IMAGE), pixel_values=torch.randn(2, 3, 16, 16)))


def test_the_encoder_of_t5_is_its_input_and_its_parts() -> None:
    module = _model("t5", d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, **WORDS)
    seen = _states(module, input_ids=IDS, decoder_input_ids=IDS)
    _adds_up(seen, "encoder.")
    assert "decoder.block.1.mlp" in seen


def test_a_capture_has_the_parts_where_it_is_asked_for_them() -> None:
    module = _model("opt", **PRE_NORM["opt"], **WORDS)
    batch = as_batch({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    taken: dict[str, torch.Tensor] = {}
    capture = HiddenCapture(module, sites=["block.1*"], parts=True)
    capture.run(batch, lambda site, vectors, rows: taken.__setitem__(site, vectors))
    assert list(taken) == ["block.1.attention", "block.1.mlp", "block.1"]
    assert {len(vectors) for vectors in taken.values()} == {IDS.numel()}
    assert [site.name for site in HiddenCapture(module, sites="block.1*").sites] == ["block.1"]
    assert HiddenCapture(_mamba(), parts=True).notes == ("the parts of its blocks were not found",)


NORMS = {  # the norms after attention and after the MLP of a block
    "bert": ("encoder.layer.1.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"),
    "roberta": ("encoder.layer.1.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"),
    "mpnet": ("encoder.layer.1.attention.LayerNorm", "encoder.layer.1.output.LayerNorm"),
    "distilbert": ("transformer.layer.1.sa_layer_norm", "transformer.layer.1.output_layer_norm"),
}


@pytest.mark.parametrize("family", NORMS)
def test_a_block_with_norms_after_its_parts_is_made_of_them(family: str) -> None:
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24} if family == "distilbert" else SMALL
    module = _model(family, **sizes, **WORDS)
    seen = _states(module, input_ids=IDS)
    after_attention, after_mlp = (module.get_submodule(path) for path in NORMS[family])
    with torch.inference_mode():
        middle = after_attention(seen["block.0"] + seen["block.1.attention"])
        torch.testing.assert_close(after_mlp(middle + seen["block.1.mlp"]), seen["block.1"])


def test_albert_runs_one_module_and_has_the_parts_of_each_call() -> None:
    module = _model("albert", **SMALL, **WORDS, embedding_size=8)
    seen = _states(module, input_ids=IDS)
    layer: Any = module.get_submodule("encoder.albert_layer_groups.0.albert_layers.0")
    with torch.inference_mode():
        for before, block in (("embeddings", "block.0"), ("block.0", "block.1")):
            middle = layer.attention.LayerNorm(seen[before] + seen[f"{block}.attention"])
            torch.testing.assert_close(layer.full_layer_layer_norm(middle + seen[f"{block}.mlp"]), seen[block])


def test_models_without_such_parts_have_no_such_sites() -> None:
    sites = map_sites(_mamba()).sites
    assert with_parts(_mamba(), sites) == list(sites)
