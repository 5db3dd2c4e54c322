"""Stand-ins: every architecture of the catalogue, small, with random weights and a working processor.

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
from anisoscope.models.stand_ins import configs, processors

register()

transformers: Any = library  # its classes take more than their signatures say


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


_UNPUBLISHED = {"encoder.t5_encoder.embed_tokens.weight"}  # MANTa: a table that the library makes and never reads
_POSITIONS = {"max_position_embeddings": 128}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_CANINE = {"pad_token_id": 0, "bos_token_id": 0xE000, "eos_token_id": 0xE001, "num_hash_buckets": 2048}


def _text(library_name: str, published: str, processor: Callable[[], Any], **sizes: Any) -> Specimen:
    """An architecture whose config the library builds from the shared sizes."""
    return Specimen("text", configs.encoder(library_name, processor, **sizes), published, processor)


def _pictures(config: Callable[[], Any], published: str, processor: str, size: int, **more: Any) -> Specimen:
    return Specimen("vision", config, published, lambda: processors.images(processor, size), size, **more)


_SPECIMENS: dict[str, Specimen] = {
    "bert": _text("Bert", "BertForMaskedLM", processors.bert, **_POSITIONS),
    "roberta": _text(
        "Roberta", "RobertaForMaskedLM", processors.roberta, max_position_embeddings=130, type_vocab_size=1
    ),
    "mpnet": _text("MPNet", "MPNetForMaskedLM", processors.mpnet, **_POSITIONS),
    "modernbert": Specimen("text", configs.modernbert, "ModernBertForMaskedLM", processors.modernbert),
    "canine": Specimen(
        "text",
        lambda: transformers.CanineConfig(**configs.SMALL, **_CANINE, max_position_embeddings=2048),
        "CanineModel",
        transformers.CanineTokenizer,
    ),
    "gpt2": Specimen("text", configs.gpt2, "GPT2LMHeadModel", processors.gpt2),
    "opt": Specimen("text", configs.opt, "OPTForCausalLM", processors.opt),
    "gpt_neox": _text("GPTNeoX", "GPTNeoXForCausalLM", processors.gpt_neox, **_POSITIONS),
    "llama": _text("Llama", "LlamaForCausalLM", processors.llama, num_key_value_heads=2, **_POSITIONS),
    "falcon": Specimen("text", configs.falcon, "FalconForCausalLM", processors.falcon),
    "mamba": Specimen(
        "text",
        lambda: transformers.MambaConfig(
            hidden_size=configs.D, num_hidden_layers=configs.LAYERS, state_size=8, **configs.ids(processors.gpt_neox())
        ),
        "MambaForCausalLM",
        processors.gpt_neox,
    ),
    "t5": Specimen("text", configs.t5(processors.t5), "T5ForConditionalGeneration", processors.t5),
    "byt5": Specimen("text", configs.t5(processors.byt5, **_GATED), "T5ForConditionalGeneration", processors.byt5),
    "wav2vec2": Specimen(
        "speech", configs.waveform("Wav2Vec2", feat_extract_norm="group"), "Wav2Vec2ForPreTraining", processors.waves
    ),
    "wav2vec2_stable": Specimen(
        "speech",
        configs.waveform("Wav2Vec2", feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
        "Wav2Vec2ForPreTraining",
        processors.stable_waves,
    ),
    "hubert": Specimen(
        "speech", configs.waveform("Hubert", feat_extract_norm="group"), "HubertModel", processors.waves
    ),
    "whisper": Specimen("speech", configs.whisper, "WhisperForConditionalGeneration", processors.whisper),
    "vit": _pictures(configs.patches("ViT"), "ViTForImageClassification", "ViT", 32),
    "deit": _pictures(configs.patches("DeiT"), "DeiTForImageClassificationWithTeacher", "DeiT", 32),
    "beit": _pictures(
        configs.patches(
            "Beit", use_relative_position_bias=True, use_absolute_position_embeddings=False, out_indices=[1]
        ),
        "BeitForImageClassification",
        "Beit",
        32,
    ),
    "segformer": _pictures(configs.segformer, "SegformerForImageClassification", "Segformer", 64),
    "resnet": _pictures(configs.resnet, "ResNetForImageClassification", "ConvNext", 64),
    "efficientnet": _pictures(configs.efficientnet, "EfficientNetForImageClassification", "EfficientNet", 64),
    "cvt": _pictures(configs.cvt, "CvtForImageClassification", "ConvNext", 64),
    "convnext": _pictures(configs.convnext, "ConvNextForImageClassification", "ConvNext", 64),
    "mobilenet_v2": _pictures(
        lambda: transformers.MobileNetV2Config(depth_multiplier=0.35, image_size=64, num_labels=5),
        "MobileNetV2ForImageClassification",
        "MobileNetV2",
        64,
    ),
    "character_bert": Specimen(
        "text", configs.character_bert, "CharacterBertForMaskedLM", processors.character_bert, pickled=True
    ),
    "manta": Specimen("text", configs.manta, "MantaForConditionalGeneration", processors.byt5, pickled=True),
    "van": _pictures(configs.van, "VanForImageClassification", "ConvNext", 64, pickled=True),
    "clip": Specimen("composite", configs.clip, "CLIPModel", processors.clip, 32),
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
