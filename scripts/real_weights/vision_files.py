"""EfficientNet-Lite and TinyViT, published under other names, as folders that open like any other model.

EfficientNet-Lite is EfficientNet without squeeze-and-excitation and with ReLU6. transformers' EfficientNet has that
layer in every block; its gate sigmoid(W₂ act(W₁ mean) + b₂) is exactly 1 in float32 with W₁ = W₂ = 0 and b₂ = 40.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from torch import Tensor

_OPEN = 40.0
_LITE_NAMES = (
    (r"^_conv_stem\.", "embeddings.convolution."),
    (r"^_bn0\.", "embeddings.batchnorm."),
    (r"^_blocks\.", "encoder.blocks."),
    (r"^_conv_head\.", "encoder.top_conv."),
    (r"^_bn1\.", "encoder.top_bn."),
    (r"\._expand_conv\.", ".expansion.expand_conv."),
    (r"\._bn0\.", ".expansion.expand_bn."),
    (r"\._depthwise_conv\.", ".depthwise_conv.depthwise_conv."),
    (r"\._bn1\.", ".depthwise_conv.depthwise_norm."),
    (r"\._project_conv\.", ".projection.project_conv."),
    (r"\._bn2\.", ".projection.project_bn."),
)


def efficientnet_lite(checkpoint: Path, target: Path) -> None:
    """EfficientNet-Lite0, as a folder with image processor: pixels are (x − 127) / 128."""
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = transformers.EfficientNetForImageClassification(lite_config())
    model.classifier.load_state_dict({name: weights.pop(f"_fc.{name}") for name in ("weight", "bias")})
    model.efficientnet.load_state_dict(lite_names(weights, model.efficientnet.state_dict()), strict=True)
    model.save_pretrained(target)
    transformers.EfficientNetImageProcessorPil(
        size={"height": 224, "width": 224},
        resample=3,
        rescale_factor=1 / 128,
        rescale_offset=False,
        do_normalize=True,
        image_mean=[127 / 128] * 3,
        image_std=[1.0] * 3,
        include_top=False,
    ).save_pretrained(target)


def lite_config() -> transformers.EfficientNetConfig:
    """What Lite0 differs in from B7, the library's default."""
    return transformers.EfficientNetConfig(
        hidden_act="relu6",
        width_coefficient=1.0,
        depth_coefficient=1.0,
        image_size=224,
        hidden_dim=1280,
        num_labels=1000,
    )


def lite_names(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published names as those of EfficientNetModel, the gates that Lite lacks held open."""
    renamed = {_rename(key): weight for key, weight in weights.items()}
    gates = {key: torch.zeros_like(weight) for key, weight in wanted.items() if ".squeeze_excite." in key}
    opened = {key: torch.full_like(gate, _OPEN) for key, gate in gates.items() if key.endswith("expand.bias")}
    return renamed | gates | opened


def _rename(key: str) -> str:
    for pattern, name in _LITE_NAMES:
        key = re.sub(pattern, name, key)
    return key


def tinyvit(checkpoint: Path, target: Path) -> None:
    """The image encoder of MobileSAM without its neck, as a folder; pictures are stretched to 1024 × 1024."""
    from anisoscope.models.extra.tinyvit import TinyVitConfig, TinyVitModel

    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)
    under = "image_encoder."
    spare = ("neck.", "head.", "norm_head.")
    own = {key.removeprefix(under): weight for key, weight in weights.items() if key.startswith(under)}
    model = TinyVitModel(TinyVitConfig())
    model.load_state_dict({key: weight for key, weight in own.items() if not key.startswith(spare)}, strict=True)
    model.save_pretrained(target)
    transformers.ViTImageProcessorPil(
        size={"height": 1024, "width": 1024}, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]
    ).save_pretrained(target)
