"""What is known of each architecture: where its blocks are, what ends a stack, which positions its states have.

A **stack** is a list of blocks that a state runs through. BERT is one stack, T5 is two (`encoder.`, `decoder.`), CANINE
is three (characters, downsampled molecules, characters again), a convolutional network is one per stage. A row of these
tables says where the stack lies in the library's module tree; everything else (names, order, hooks) follows by rule in
`sites.py`. Only norms through which every position passes count as final: not the ones that the library applies to a
pooled vector (CLIP's vision tower, ConvNeXt, BEiT with mean pooling), nor those before the blocks (wav2vec2-base), nor
those that the forward pass never reaches (VAN's `layernorm`).

A new family is one entry: its `model_type` and where its stack lies. Say `owl` keeps its blocks in `trunk.blocks` and
ends in `trunk.norm`:

    "owl": (Stack("trunk.blocks", "trunk.norm"),),                      # in _STACKS
    "owl": _patches("trunk.blocks", "trunk.norm", tokens=1),            # in _BY_CONFIG, if the config decides

A family without an entry works too, if the guess of `unknown.py` holds; an entry saves the check and names its
positions.

Stages of the two networks that the library keeps as one flat list follow the published tables, one stage per row:
EfficientNet by its config's `num_block_repeats` (Tan & Le 2019, table 1), MobileNetV2 by the n column (Sandler et al.
2018, table 2; the first row, c = 16, is part of the stem). The 1×1 convolution with which both widen the last map for
their classifier is neither a block nor a site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

Positions = Literal["tokens", "decoder", "molecules", "frames", "window", "all", "map", "unknown"]
"""What the positions of a state are, which decides the ones that count (`masks.py`):

- `tokens`: those of the main input; `decoder`: those of the decoder's input;
- `molecules`: CANINE's groups of four characters; `frames`: what wav2vec2's convolutions make of the samples;
- `window`: Whisper's encoder, whose window is always full; `all`: patches of an image, MANTa's blocks;
- `map`: places of a convolutional map, which have no order, so that none of them is first;
- `unknown`: the architecture is in no table; found out from the state's shape.
"""


@dataclass(frozen=True)
class Stack:
    """Blocks that run one after the other. Paths are relative to the model without its head.

    - `blocks`: the list of blocks; `norm`: what the last block's output goes through, where there is such a thing;
    - `name`: what the names of the blocks begin with (`encoder.`, `stage.2.`);
    - `enters`: the name of the site of what enters the first block; `None`: not a site of its own;
    - `ends`: the name of the norm's site;
    - `order`: which members of the list are run, in order; `None`: each once. ALBERT runs one member many times;
    - `prefix_tokens`: how many positions at the front are special (class, distillation and register tokens).
    """

    blocks: str
    norm: str | None = None
    name: str = ""
    enters: str | None = "embeddings"
    ends: str = "final_norm"
    positions: Positions = "tokens"
    prefix_tokens: int = 0
    order: tuple[int, ...] | None = None


def _named(name: str, blocks: str, norm: str | None = None, positions: Positions = "tokens") -> Stack:
    """A stack whose every site begins with `name`."""
    return Stack(blocks, norm, name, f"{name}embeddings", f"{name}final_norm", positions)


def _both(blocks: str, norm: str) -> tuple[Stack, ...]:
    encoder = _named("encoder.", f"encoder.{blocks}", f"encoder.{norm}")
    return encoder, _named("decoder.", f"decoder.{blocks}", f"decoder.{norm}", "decoder")


_BERT = (Stack("encoder.layer"),)
_GPT2 = (Stack("h", "ln_f"),)
_LLAMA = (Stack("layers", "norm"),)
_T5 = _both("block", "final_layer_norm")
_BART = _both("layers", "layer_norm")
_WHISPER = (replace(_BART[0], positions="window"), _BART[1])
_MANTA = (_named("encoder.", "encoder.t5_encoder.block", "encoder.t5_encoder.final_layer_norm", "all"), _T5[1])
_CANINE = (
    _named("char.", "initial_char_encoder.layer"),
    Stack("encoder.layer", positions="molecules", prefix_tokens=1),  # the first molecule is [CLS] itself
    _named("final.", "final_char_encoder.layer"),
)

_STACKS: Mapping[str, tuple[Stack, ...]] = MappingProxyType(
    dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet", "character_bert"), _BERT)
    | dict.fromkeys(("gpt2", "gptj", "gpt_neo", "gpt_bigcode", "bloom", "falcon"), _GPT2)
    | dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2"), _LLAMA)
    | dict.fromkeys(("smollm3", "phi3", "granite"), _LLAMA)
    | dict.fromkeys(("t5", "mt5", "umt5"), _T5)
    | dict.fromkeys(("bart", "mbart", "marian", "pegasus", "m2m_100"), _BART)
    | {
        "distilbert": (Stack("transformer.layer"),),
        "roberta-prelayernorm": (Stack("encoder.layer", "LayerNorm"),),
        "modernbert": (Stack("layers", "final_norm"),),
        "gpt_neox": (Stack("layers", "final_layer_norm"),),
        "opt": (Stack("decoder.layers", "decoder.final_layer_norm"),),
        "phi": (Stack("layers", "final_layernorm"),),
        "mamba": (Stack("layers", "norm_f"),),
        "mamba2": (Stack("layers", "norm_f"),),
        "canine": _CANINE,
        "manta": _MANTA,
        "whisper": _WHISPER,
        "clip_text_model": (Stack("encoder.layers", "final_layer_norm"),),
        "siglip_text_model": (Stack("encoder.layers", "final_layer_norm"),),
    }
)


def _albert(config: Any) -> tuple[Stack, ...]:
    """Few modules, run many times: block K is a call, not a module."""
    calls = config.num_hidden_layers / config.num_hidden_groups
    order = tuple(int(block / calls) for block in range(config.num_hidden_layers))
    return (Stack("encoder.albert_layer_groups", order=order),)


def _waveform(config: Any) -> tuple[Stack, ...]:
    """The norm of the post-norm variant stands before the blocks, that of the stable variant after them."""
    norm = "encoder.layer_norm" if getattr(config, "do_stable_layer_norm", False) else None
    return (Stack("encoder.layers", norm, positions="frames"),)


def _patches(blocks: str, norm: str | None, *, tokens: int) -> Callable[[Any], tuple[Stack, ...]]:
    def stacks(config: Any) -> tuple[Stack, ...]:
        registers = getattr(config, "num_register_tokens", 0)
        return (Stack(blocks, norm, positions="all", prefix_tokens=tokens + registers),)

    return stacks


def _stages(
    stages: str, blocks: str, *, depths: str = "depths", norm: str | None = None, final: str | None = None
) -> Callable[[Any], tuple[Stack, ...]]:
    """One stack per stage. `norm`: what each stage ends in; `final`: what the last one ends in."""

    def stacks(config: Any) -> tuple[Stack, ...]:
        last = len(getattr(config, depths)) - 1
        class_tokens = getattr(config, "cls_token", [False] * (last + 1))  # CvT: one flag per stage
        return tuple(
            Stack(
                f"{stages}.{stage}.{blocks}",
                norm=f"{stages}.{stage}.{norm}" if norm else final if stage == last else None,
                name=f"stage.{stage}.",
                enters="embeddings" if stage == 0 else None,
                ends=f"stage.{stage}.norm" if norm else "final_norm",
                positions="map",
                prefix_tokens=int(class_tokens[stage]),
            )
            for stage in range(last + 1)
        )

    return stacks


def _flat(blocks: str, repeats: Callable[[Any], list[int]]) -> Callable[[Any], tuple[Stack, ...]]:
    """Stages that the library keeps in one list."""

    def stacks(config: Any) -> tuple[Stack, ...]:
        counts = repeats(config)
        firsts = accumulate(counts, initial=0)
        return tuple(
            Stack(
                blocks,
                name=f"stage.{stage}.",
                enters="embeddings" if stage == 0 else None,
                positions="map",
                order=tuple(range(first, first + count)),
            )
            for stage, (first, count) in enumerate(zip(firsts, counts, strict=False))
        )

    return stacks


def _efficientnet_repeats(config: Any) -> list[int]:
    return [math.ceil(config.depth_coefficient * repeats) for repeats in config.num_block_repeats]


def _mobilenet_v2_repeats(config: Any) -> list[int]:
    return [2, 3, 4, 3, 3, 1]


_BY_CONFIG: Mapping[str, Callable[[Any], tuple[Stack, ...]]] = MappingProxyType(
    dict.fromkeys(("wav2vec2", "hubert", "wavlm"), _waveform)
    | {
        "albert": _albert,
        "vit": _patches("layers", "layernorm", tokens=1),
        "deit": _patches("layers", "layernorm", tokens=2),
        "beit": _patches("layers", "layernorm", tokens=1),
        "dinov2": _patches("encoder.layer", "layernorm", tokens=1),
        "dinov2_with_registers": _patches("encoder.layer", "layernorm", tokens=1),
        "clip_vision_model": _patches("encoder.layers", None, tokens=1),
        "siglip_vision_model": _patches("encoder.layers", "post_layernorm", tokens=0),
        "audio-spectrogram-transformer": _patches("layers", "layernorm", tokens=2),
        "segformer": _stages("stages", "blocks", norm="layer_norm"),
        "resnet": _stages("encoder.stages", "layers"),
        "convnext": _stages("encoder.stages", "layers"),
        "convnextv2": _stages("encoder.stages", "layers"),
        "cvt": _stages("encoder.stages", "layers", depths="depth"),
        "swin": _stages("encoder.layers", "blocks", final="layernorm"),
        "tinyvit": _stages("layers", "blocks"),
        "van": _stages("encoder.stages", "layers", norm="normalization"),
        "efficientnet": _flat("encoder.blocks", _efficientnet_repeats),
        "mobilenet_v2": _flat("layer", _mobilenet_v2_repeats),
    }
)


def known_stacks(config: Any) -> tuple[Stack, ...] | None:
    """The stacks of a family of the tables, in order of computation; `None` for any other.

    >>> from transformers import GPT2Config
    >>> known_stacks(GPT2Config())[0].norm
    'ln_f'
    """
    family = str(getattr(config, "model_type", ""))
    if family in _BY_CONFIG:
        return _BY_CONFIG[family](config)
    return _STACKS.get(family)
