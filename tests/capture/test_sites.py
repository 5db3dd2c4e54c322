"""Every architecture has the sites that its paper draws, under the same names."""

from __future__ import annotations

import pytest
import transformers
from torch import nn

import zoo
from anisoscope.capture.sites import choose_sites, find_sites, map_sites
from anisoscope.errors import ModelError, UsageError

SMALL = zoo.sizes()
PATCHES = {"image_size": 32, "patch_size": 8}


def stack(blocks: int, *, prefix: str = "", norm: bool) -> list[str]:
    names = ["embeddings", *(f"block.{k}" for k in range(blocks)), *(["final_norm"] if norm else [])]
    return [prefix + name for name in names]


def stages(*depths: int, norm: bool = False, final: bool = False) -> list[str]:
    names = ["embeddings"]
    for stage, depth in enumerate(depths):
        names += [f"stage.{stage}.block.{k}" for k in range(depth)]
        names += [f"stage.{stage}.norm"] if norm else []
    return names + (["final_norm"] if final else [])


TWO_STACKS = stack(3, prefix="encoder.", norm=True) + stack(2, prefix="decoder.", norm=True)
EXPECTED = {
    "bert": stack(3, norm=False),
    "roberta": stack(3, norm=False),
    "mpnet": stack(3, norm=False),
    "modernbert": stack(3, norm=True),
    "canine": [
        *("char.embeddings", "char.block.0"),
        *("embeddings", "block.0", "block.1", "block.2"),
        *("final.embeddings", "final.block.0"),
    ],
    "gpt2": stack(3, norm=True),
    "opt": stack(3, norm=True),
    "gpt_neox": stack(3, norm=True),
    "llama": stack(3, norm=True),
    "falcon": stack(3, norm=True),
    "mamba": stack(3, norm=True),
    "t5": TWO_STACKS,
    "byt5": TWO_STACKS,
    "wav2vec2": stack(3, norm=False),
    "wav2vec2_stable": stack(3, norm=True),
    "hubert": stack(3, norm=False),
    "whisper": TWO_STACKS,
    "vit": stack(3, norm=True),
    "deit": stack(3, norm=True),
    "beit": stack(3, norm=False),  # its norm is the pooler's, over one vector
    "segformer": stages(2, 2, 1, 1, norm=True),
    "resnet": stages(2, 2, 2, 1),
    "efficientnet": stages(1, 2, 2, 3, 3, 4, 1),
    "cvt": stages(1, 2, 3),
    "convnext": stages(2, 2, 3, 2),
    "mobilenet_v2": stages(2, 3, 4, 3, 3, 1),
    "character_bert": stack(3, norm=False),
    "manta": TWO_STACKS,
    "van": stages(2, 2, 3, 2, norm=True),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_sites_of_each_architecture(name, opened):
    assert [site.name for site in find_sites(opened(name).module)] == EXPECTED[name]


@pytest.mark.parametrize("name", ["gpt2", "t5", "whisper", "deit", "efficientnet", "wav2vec2_stable"])
def test_a_head_changes_paths_but_no_names(name):
    plain, headed = find_sites(zoo.module(name)), find_sites(zoo.module(name, head=True))
    assert [site.name for site in plain] == [site.name for site in headed]
    module = zoo.module(name, head=True)
    assert all(isinstance(module.get_submodule(site.path), nn.Module) for site in headed)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.AlbertConfig(**SMALL, vocab_size=20, embedding_size=8), stack(2, norm=False)),
        (transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32), stack(2, norm=False)),
        (transformers.RobertaPreLayerNormConfig(**SMALL, vocab_size=20), stack(2, norm=True)),
        (transformers.Dinov2WithRegistersConfig(**SMALL, **PATCHES), stack(2, norm=True)),
        (transformers.BeitConfig(**SMALL, **PATCHES, use_mean_pooling=False, out_indices=[1]), stack(2, norm=True)),
        (transformers.CLIPVisionConfig(**SMALL, **PATCHES), stack(2, norm=False)),
        (transformers.SiglipVisionConfig(**SMALL, **PATCHES), stack(2, norm=True)),
        (
            transformers.SwinConfig(embed_dim=8, depths=[1, 2], num_heads=[1, 2], image_size=32, window_size=2),
            stages(1, 2, final=True),
        ),
        (
            transformers.BartConfig(d_model=16, encoder_layers=1, decoder_layers=2, vocab_size=20),
            stack(1, prefix="encoder.", norm=False) + stack(2, prefix="decoder.", norm=False),
        ),
        (
            transformers.OPTConfig(
                **SMALL, ffn_dim=32, vocab_size=20, do_layer_norm_before=False, word_embed_proj_dim=8
            ),
            stack(2, norm=False),
        ),  # opt-350m: post-norm, so nothing is left to normalise
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_variants_that_end_otherwise(config, expected):
    assert [site.name for site in find_sites(transformers.AutoModel.from_config(config))] == expected


def test_a_shared_module_is_as_many_sites_as_it_has_calls():
    config = transformers.AlbertConfig(
        hidden_size=16, num_hidden_layers=4, num_hidden_groups=2, num_attention_heads=2, intermediate_size=32
    )
    blocks = [site for site in find_sites(transformers.AlbertModel(config)) if site.kind == "block"]
    assert [(site.path[-1], site.call) for site in blocks] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]


def test_layers_count_through_the_stages():
    layers = [site.layer for site in find_sites(zoo.module("segformer")) if site.kind == "block"]
    assert layers == list(range(6))
    assert {site.layer for site in find_sites(zoo.module("segformer")) if site.kind != "block"} == {None}


@pytest.mark.parametrize(
    ("name", "tokens"), [("vit", 1), ("deit", 2), ("beit", 1), ("clip:vision", 1), ("segformer", 0), ("canine", 1)]
)
def test_prefix_tokens(name, tokens, opened):
    sites = {site.name: site for site in find_sites(opened(name).module)}
    assert sites["embeddings"].prefix_tokens == tokens


def test_only_the_last_stage_of_cvt_has_a_class_token(opened):
    tokens = {site.name: site.prefix_tokens for site in find_sites(opened("cvt").module)}
    assert (tokens["stage.1.block.0"], tokens["stage.2.block.0"]) == (0, 1)


def test_patterns_choose_in_order_of_computation(opened):
    sites = find_sites(opened("t5").module)
    chosen = choose_sites(sites, ["decoder.block.*", "encoder.embeddings"])
    assert [site.name for site in chosen] == ["encoder.embeddings", "decoder.block.0", "decoder.block.1"]


def test_a_pattern_that_matches_nothing_is_refused(opened):
    with pytest.raises(UsageError, match=r"(?s)'blocks\.\*'.*block\.2"):
        choose_sites(find_sites(opened("gpt2").module), ["block.*", "blocks.*"])


def test_two_modalities_need_a_choice_of_tower():
    with pytest.raises(ModelError, match="tower"):
        find_sites(zoo.module("clip"))


def test_an_unknown_architecture_is_guessed():
    config = transformers.MptConfig(d_model=16, n_heads=2, n_layers=2, vocab_size=20)
    found = map_sites(transformers.MptModel(config))
    assert not found.known
    assert [site.name for site in found.sites] == stack(2, norm=True)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ModelError, match="no list of blocks"):
        find_sites(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
