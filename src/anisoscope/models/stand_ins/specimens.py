"""Stand-ins: every architecture of the catalogue, small, with random weights and a processor that really works.

    from anisoscope.models.stand_ins import specimens as stand_ins
    folder = stand_ins.save("gpt2", Path("tiny"))   # as published: weights of the published class, config, processor
    module = stand_ins.module("gpt2")               # in memory, eval mode, the class that AutoModel gives
    headed = stand_ins.module("gpt2", head=True)    # the class of the published checkpoint, with the same body
    processor = stand_ins.processor("gpt2")         # tokenizer, feature extractor, image processor, or both in one

They are for trying the instrument where no checkpoint is at hand (`anisoscope paper --scale demo`, the tests), never
for conclusions about the models whose shape they have.

The weights are not those of the initialiser, which are degenerate at this size (norms 1/0, layer scales near 0, blocks
that change nothing): matrices are redrawn with variance 1/fan-in, gains, biases and layer scales are moved by about a
tenth, batch norms get the statistics of random pictures. The same name and seed give the same body in `module`, with or
without head, and in `save`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as library
from torch import nn

from anisoscope.models.extra import characterbert, manta, van
from anisoscope.models.extra.register import register
from anisoscope.models.stand_ins import processors

register()

transformers: Any = library  # its classes take more than their signatures say

D, LAYERS, HEADS, WIDE = 32, 3, 4, 64
SMALL = {
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
}


@dataclass(frozen=True)
class Specimen:
    """How one architecture is made: its config, the class that was published, its processor.

    `size` is the side of its pictures; `pickled` says that its weights were published as pytorch_model.bin only.
    """

    modality: str
    config: Callable[[], Any]
    published: str
    processor: Callable[[], Any]
    size: int | None = None
    pickled: bool = False


def _ids(tokenizer: Any) -> dict[str, Any]:
    """The vocabulary size and the ids of the special tokens, as config fields."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def _encoder(kind: str, tokenizer: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """A config of `kind` with the small sizes and the vocabulary of its tokenizer."""
    return lambda: getattr(transformers, f"{kind}Config")(**{**SMALL, **_ids(tokenizer()), **options})


def _t5(tokenizer: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    sizes = {
        "d_model": D,
        "d_kv": D // HEADS,
        "d_ff": WIDE,
        "num_layers": LAYERS,
        "num_decoder_layers": 2,
        "num_heads": HEADS,
    }
    return lambda: transformers.T5Config(
        **sizes, vocab_size=len(tokenizer()), pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **options
    )


def _waveform(kind: str, **options: Any) -> Callable[[], Any]:
    """wav2vec 2.0 and HuBERT: three convolutions of stride 5, 4, 4 instead of seven; 16,000 samples give 199 frames."""
    convolutions = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 4, 4), "conv_stride": (5, 4, 4)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return lambda: getattr(transformers, f"{kind}Config")(
        **SMALL, **convolutions, **positions, vocab_size=32, **options
    )


def _whisper() -> Any:
    layers = {
        "encoder_layers": LAYERS,
        "decoder_layers": 2,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
    }
    widths = {"d_model": D, "encoder_ffn_dim": WIDE, "decoder_ffn_dim": WIDE, "num_mel_bins": 16}
    limits = {"max_source_positions": 100, "max_target_positions": 64}
    tokenizer = processors.whisper_text()
    start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    ids = {**_ids(tokenizer), "pad_token_id": tokenizer.eos_token_id, "decoder_start_token_id": start}
    return transformers.WhisperConfig(**layers, **widths, **limits, **ids)


def _clip() -> Any:
    tokenizer = processors.clip_text()
    text = {**SMALL, **_ids(tokenizer), "max_position_embeddings": 24, "projection_dim": 16}
    vision = {**SMALL, "image_size": 32, "patch_size": 8, "projection_dim": 16}
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


def _patches(kind: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{kind}Config")(**SMALL, image_size=32, patch_size=8, num_labels=5, **options)


def _segformer() -> Any:
    return transformers.SegformerConfig(
        depths=[2, 2, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], num_labels=5
    )


def _resnet() -> Any:
    return transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 2, 1], num_labels=5)


def _efficientnet() -> Any:
    """B0's sixteen blocks, thinner: the depth is part of what is measured."""
    return transformers.EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=1.0, hidden_dim=320, image_size=64, num_labels=5
    )


def _cvt() -> Any:
    """The depth of stage s must exceed s, or the library raises IndexError."""
    return transformers.CvtConfig(embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3], num_labels=5)


def _convnext() -> Any:
    return transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 3, 2], num_labels=5)


def _falcon() -> Any:
    """Falcon-7b's layout: one key/value head, parallel attention, one norm a block, rotary positions."""
    return transformers.FalconConfig(
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        multi_query=True,
        parallel_attn=True,
        bias=False,
        alibi=False,
        new_decoder_architecture=False,
        **_ids(processors.falcon()),
    )


def _opt() -> Any:
    return transformers.OPTConfig(
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=WIDE,
        word_embed_proj_dim=D,
        max_position_embeddings=128,
        **_ids(processors.opt()),
    )


def _gpt2() -> Any:
    return transformers.GPT2Config(n_embd=D, n_layer=LAYERS, n_head=HEADS, n_positions=128, **_ids(processors.gpt2()))


def _modernbert() -> Any:
    tokenizer = processors.modernbert()
    names = {"cls_token_id": tokenizer.bos_token_id, "sep_token_id": tokenizer.eos_token_id}
    return transformers.ModernBertConfig(**SMALL, **_ids(tokenizer), **names, max_position_embeddings=128)


def _character_bert() -> Any:
    filters = {"cnn_filters": [[1, 8], [2, 8], [3, 16]], "character_embeddings_dim": 8}
    config: Any = characterbert.CharacterBertConfig
    return config(**SMALL, **filters, max_position_embeddings=128, mlm_vocab_size=50)


def _manta() -> Any:
    sizes: dict[str, Any] = {
        "d_model": D,
        "d_kv": D // HEADS,
        "d_ff": WIDE,
        "num_layers": LAYERS,
        "num_decoder_layers": 2,
    }
    lengths = {"max_length_inputs": 256, "max_length_encoder_decoder": 64}
    frontier = {"byte_embedding_dim": 16, "frontier_predictor_num_attention_heads": 4}
    config: Any = manta.MantaConfig
    return config(**sizes, **lengths, **frontier, num_heads=HEADS)


def _van() -> Any:
    config: Any = van.VanConfig
    return config(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 3, 2], mlp_ratios=[4, 4, 2, 2], num_labels=5)


_UNPUBLISHED = {"encoder.t5_encoder.embed_tokens.weight"}  # MANTa: a table that the library makes and never reads
_POSITIONS = {"max_position_embeddings": 128}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_CANINE = {"pad_token_id": 0, "bos_token_id": 0xE000, "eos_token_id": 0xE001, "num_hash_buckets": 2048}
_SPECIMENS: dict[str, Specimen] = {
    "bert": Specimen("text", _encoder("Bert", processors.bert, **_POSITIONS), "BertForMaskedLM", processors.bert),
    "roberta": Specimen(
        "text",
        _encoder("Roberta", processors.roberta, max_position_embeddings=130, type_vocab_size=1),
        "RobertaForMaskedLM",
        processors.roberta,
    ),
    "mpnet": Specimen("text", _encoder("MPNet", processors.mpnet, **_POSITIONS), "MPNetForMaskedLM", processors.mpnet),
    "modernbert": Specimen("text", _modernbert, "ModernBertForMaskedLM", processors.modernbert),
    "canine": Specimen(
        "text",
        lambda: transformers.CanineConfig(**SMALL, **_CANINE, max_position_embeddings=2048),
        "CanineModel",
        transformers.CanineTokenizer,
    ),
    "gpt2": Specimen("text", _gpt2, "GPT2LMHeadModel", processors.gpt2),
    "opt": Specimen("text", _opt, "OPTForCausalLM", processors.opt),
    "gpt_neox": Specimen(
        "text",
        _encoder("GPTNeoX", processors.gpt_neox, **_POSITIONS),
        "GPTNeoXForCausalLM",
        processors.gpt_neox,
    ),
    "llama": Specimen(
        "text",
        _encoder("Llama", processors.llama, num_key_value_heads=2, **_POSITIONS),
        "LlamaForCausalLM",
        processors.llama,
    ),
    "falcon": Specimen("text", _falcon, "FalconForCausalLM", processors.falcon),
    "mamba": Specimen(
        "text",
        lambda: transformers.MambaConfig(
            hidden_size=D, num_hidden_layers=LAYERS, state_size=8, **_ids(processors.gpt_neox())
        ),
        "MambaForCausalLM",
        processors.gpt_neox,
    ),
    "t5": Specimen(
        "text",
        _t5(processors.t5),
        "T5ForConditionalGeneration",
        processors.t5,
    ),
    "byt5": Specimen("text", _t5(processors.byt5, **_GATED), "T5ForConditionalGeneration", processors.byt5),
    "wav2vec2": Specimen(
        "speech", _waveform("Wav2Vec2", feat_extract_norm="group"), "Wav2Vec2ForPreTraining", processors.waves
    ),
    "wav2vec2_stable": Specimen(
        "speech",
        _waveform("Wav2Vec2", feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
        "Wav2Vec2ForPreTraining",
        processors.stable_waves,
    ),
    "hubert": Specimen("speech", _waveform("Hubert", feat_extract_norm="group"), "HubertModel", processors.waves),
    "whisper": Specimen("speech", _whisper, "WhisperForConditionalGeneration", processors.whisper),
    "vit": Specimen("vision", _patches("ViT"), "ViTForImageClassification", lambda: processors.images("ViT", 32), 32),
    "deit": Specimen(
        "vision",
        _patches("DeiT"),
        "DeiTForImageClassificationWithTeacher",
        lambda: processors.images("DeiT", 32),
        32,
    ),
    "beit": Specimen(
        "vision",
        _patches("Beit", use_relative_position_bias=True, use_absolute_position_embeddings=False, out_indices=[1]),
        "BeitForImageClassification",
        lambda: processors.images("Beit", 32),
        32,
    ),
    "segformer": Specimen(
        "vision", _segformer, "SegformerForImageClassification", lambda: processors.images("Segformer", 64), 64
    ),
    "resnet": Specimen(
        "vision", _resnet, "ResNetForImageClassification", lambda: processors.images("ConvNext", 64), 64
    ),
    "efficientnet": Specimen(
        "vision",
        _efficientnet,
        "EfficientNetForImageClassification",
        lambda: processors.images("EfficientNet", 64),
        64,
    ),
    "cvt": Specimen("vision", _cvt, "CvtForImageClassification", lambda: processors.images("ConvNext", 64), 64),
    "convnext": Specimen(
        "vision", _convnext, "ConvNextForImageClassification", lambda: processors.images("ConvNext", 64), 64
    ),
    "mobilenet_v2": Specimen(
        "vision",
        lambda: transformers.MobileNetV2Config(depth_multiplier=0.35, image_size=64, num_labels=5),
        "MobileNetV2ForImageClassification",
        lambda: processors.images("MobileNetV2", 64),
        64,
    ),
    "character_bert": Specimen(
        "text", _character_bert, "CharacterBertForMaskedLM", processors.character_bert, pickled=True
    ),
    "manta": Specimen("text", _manta, "MantaForConditionalGeneration", processors.byt5, pickled=True),
    "van": Specimen(
        "vision", _van, "VanForImageClassification", lambda: processors.images("ConvNext", 64), 64, pickled=True
    ),
    "clip": Specimen("composite", _clip, "CLIPModel", processors.clip, 32),
}

NAMES = tuple(_SPECIMENS)
TEXT, SPEECH, VISION = (
    tuple(name for name in NAMES if _SPECIMENS[name].modality == kind) for kind in ("text", "speech", "vision")
)


def modality(name: str) -> str:
    """`text`, `speech`, `vision`, or `composite` (CLIP: two towers)."""
    return _SPECIMENS[name].modality


def image_size(name: str) -> int | None:
    """The side of the pictures that the specimen takes."""
    return _SPECIMENS[name].size


def config(name: str) -> Any:
    """A small config of the real class, with `architectures` as published."""
    specimen = _SPECIMENS[name]
    made = specimen.config()
    made.architectures = [specimen.published]
    return made


def processor(name: str) -> Any:
    """The tokenizer, the feature extractor or the image processor of the specimen."""
    return _SPECIMENS[name].processor()


def module(name: str, seed: int = 0, *, head: bool = False) -> Any:
    """The model in memory, eval mode: what AutoModel gives, or with `head` the class of the published checkpoint."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = transformers.AutoModel.from_config(config(name), dtype=torch.float32)
        _spread(body)
        if head:
            body = _with_head(name, body)
    return body.eval().requires_grad_(False)


def save(name: str, folder: str | Path, seed: int = 0, *, with_processor: bool = True) -> Path:
    """Write the checkpoint as its authors published it: weights of the headed class, config, processor files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = module(name, seed, head=True)
    if _SPECIMENS[name].pickled:
        made.config.save_pretrained(folder)
        weights = {key: weight for key, weight in made.state_dict().items() if key not in _UNPUBLISHED}
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        made.save_pretrained(folder)
    if with_processor:
        _save_processor(processor(name), folder)
    return folder


def _save_processor(made: Any, folder: Path) -> None:
    """Each part by itself (preprocessor_config.json, tokenizer files), as hub checkpoints have them."""
    parts = [getattr(made, part, None) for part in ("tokenizer", "feature_extractor", "image_processor")]
    for part in [part for part in parts if part is not None] or [made]:
        part.save_pretrained(folder)


def _with_head(name: str, body: Any) -> Any:
    """The published class around a copy of the body. T5's headed class has no inner model: it shares the names."""
    headed = _published(name)(copy.deepcopy(body.config))
    _spread(headed)
    inner = getattr(headed, headed.base_model_prefix, headed)
    inner.load_state_dict(body.state_dict(), strict=False)
    headed.tie_weights()
    return headed


def _published(name: str) -> Any:
    """The class that the checkpoint was saved from, of the library or of this package."""
    wanted = _SPECIMENS[name].published
    place = next(place for place in (characterbert, manta, van, transformers) if hasattr(place, wanted))
    return getattr(place, wanted)


@torch.no_grad()
def _spread(model: nn.Module) -> None:
    """Redraw the weights so that every part of the network matters."""
    for path, weight in model.named_parameters():
        if weight.dim() < 2:
            weight.add_(0.1 * torch.randn_like(weight))
        elif not path.endswith("original0"):  # the length of a weight-normalised kernel must stay positive
            gain = 16 if path.endswith("byte_embeddings.weight") else 1  # MANTa pools by a maximum: little survives
            weight.copy_(torch.randn_like(weight) * gain * max(weight[0].numel(), 1) ** -0.5)
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    if norms:
        _settle(model, norms)


def _settle(model: nn.Module, norms: list[nn.BatchNorm2d]) -> None:
    """Give the batch norms the statistics of random pictures, or deep networks answer the same to everything."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    model(pixel_values=torch.randn(8, 3, 64, 64))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
