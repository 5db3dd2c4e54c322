"""VAN, the Visual Attention Network: four stages of convolutions whose "attention" is one large kernel.

Guo, Lu, Liu, Cheng, Hu, *Visual Attention Network*, 2022, https://arxiv.org/abs/2202.09741. The library dropped it in
its fifth version; this one loads the published checkpoints (`Visual-Attention-Network/van-{tiny,small,base,large}`).

A stage is a strided convolution with batch norm, some blocks, and a layer norm over channels. A block, with BN the
stored batch statistics, s the layer scales, ⊙ by channel and DW a depthwise convolution:

    y = BN(x),  u = gelu(W₁y),  a = W₂ DW7×7,dilation 3( DW5×5(u) ),  x ← x + s₁ ⊙ ( W₃(u ⊙ a) + y )
    v = gelu(DW3×3(W₄ BN'(x))),  x ← x + s₂ ⊙ W₅v

Traps, each kept because the checkpoints need it: the inner residual is the *normalised* y, not x; `pre_normomalization`
is spelled so; `layernorm` exists and is never used; batch norms have eps 1e-5, layer norms 1e-6. `hidden_states` are
four maps (B, C, H, W), one per stage after its layer norm, with no entry for the embeddings or for single blocks. The
library's ConvNeXt image processor prepares the pictures, but its own default statistics (0.5) are not VAN's.
"""
# ruff: noqa: RUF012 - the library declares these class attributes as mutable, and a ClassVar would contradict it

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndNoAttention, ImageClassifierOutputWithNoAttention
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.convnext.modeling_convnext import ConvNextDropPath, ConvNextLayerNorm
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs


@strict
class VanConfig(PreTrainedConfig):
    """The sizes of a VAN; the defaults are those of van-base."""

    model_type = "van"

    num_channels: int = 3
    image_size: int = 224
    patch_sizes: list[int] | tuple[int, ...] = (7, 3, 3, 3)
    strides: list[int] | tuple[int, ...] = (4, 2, 2, 2)
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 320, 512)
    depths: list[int] | tuple[int, ...] = (3, 3, 12, 3)
    mlp_ratios: list[int] | tuple[int, ...] = (8, 8, 4, 4)
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-6
    layer_scale_init_value: float = 1e-2
    drop_path_rate: float | int = 0.0
    dropout_rate: float | int = 0.0


class VanImageProcessor(ConvNextImageProcessorPil):
    """The library's ConvNeXt processor as VAN was published: 224 from a shortest edge of 256, ImageNet statistics."""

    size = {"shortest_edge": 224}
    image_mean = IMAGENET_DEFAULT_MEAN
    image_std = IMAGENET_DEFAULT_STD
    crop_pct = 0.875


class VanPatches(nn.Module):
    """The overlapping strided convolution that opens a stage."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels, kernel, stride=stride, padding=kernel // 2)
        self.normalization = nn.BatchNorm2d(channels)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.normalization(self.convolution(pixels))


class VanLargeKernel(nn.Module):
    """A 21×21 receptive field from a 5×5 kernel, a 7×7 kernel of dilation 3, and a mixing of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depth_wise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.depth_wise_dilated = nn.Conv2d(channels, channels, 7, dilation=3, padding=9, groups=channels)
        self.point_wise = nn.Conv2d(channels, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.point_wise(self.depth_wise_dilated(self.depth_wise(features)))


class VanGate(nn.Module):
    """The features times what the large kernel makes of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = VanLargeKernel(channels)

    def forward(self, features: Tensor) -> Tensor:
        return features * self.attention(features)


class VanAttention(nn.Module):
    """Project, gate, project back, add the (normalised) input."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        self.pre_projection = nn.Sequential(
            OrderedDict(conv=nn.Conv2d(channels, channels, 1), activation=ACT2FN[activation])
        )
        self.attention_layer = VanGate(channels)
        self.post_projection = nn.Conv2d(channels, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.post_projection(self.attention_layer(self.pre_projection(features))) + features


class VanMlp(nn.Module):
    """A feed-forward network that also looks at the eight neighbours."""

    def __init__(self, channels: int, hidden: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.in_dense = nn.Conv2d(channels, hidden, 1)
        self.depth_wise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.activation = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout)
        self.out_dense = nn.Conv2d(hidden, channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.depth_wise(self.in_dense(features))))
        return self.dropout(self.out_dense(hidden))


class VanScale(nn.Module):
    """One learnt factor per channel."""

    def __init__(self, channels: int, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), float(value)))

    def forward(self, features: Tensor) -> Tensor:
        return self.weight[:, None, None] * features


class VanBlock(nn.Module):
    """Attention, then the feed-forward network, each normalised before, scaled after, and added."""

    def __init__(self, config: VanConfig, channels: int, ratio: int, drop_path: float) -> None:
        super().__init__()
        self.pre_normomalization = nn.BatchNorm2d(channels)  # the checkpoints spell it so
        self.attention = VanAttention(channels, config.hidden_act)
        self.attention_scaling = VanScale(channels, config.layer_scale_init_value)
        self.post_normalization = nn.BatchNorm2d(channels)
        self.mlp = VanMlp(channels, ratio * channels, config.hidden_act, config.dropout_rate)
        self.mlp_scaling = VanScale(channels, config.layer_scale_init_value)
        self.drop_path = ConvNextDropPath(drop_path)

    def forward(self, features: Tensor) -> Tensor:
        attended = self.attention(self.pre_normomalization(features))
        features = features + self.drop_path(self.attention_scaling(attended))
        return features + self.drop_path(self.mlp_scaling(self.mlp(self.post_normalization(features))))


class VanStage(nn.Module):
    """Patches, blocks, and a layer norm over the channels of each position."""

    def __init__(self, config: VanConfig, index: int, drop_paths: list[float]) -> None:
        super().__init__()
        channels = config.hidden_sizes[index]
        channels_in = config.hidden_sizes[index - 1] if index else config.num_channels
        self.embeddings = VanPatches(channels_in, channels, config.patch_sizes[index], config.strides[index])
        self.layers = nn.ModuleList(VanBlock(config, channels, config.mlp_ratios[index], rate) for rate in drop_paths)
        self.normalization = ConvNextLayerNorm(channels, eps=config.layer_norm_eps, data_format="channels_first")

    def forward(self, features: Tensor) -> Tensor:
        features = self.embeddings(features)
        for block in self.layers:
            features = block(features)
        return self.normalization(features)  # (B, C, H, W)


class VanEncoder(nn.Module):
    """The stages, one after the other; the rate of dropped paths rises linearly with depth."""

    def __init__(self, config: VanConfig) -> None:
        super().__init__()
        rates = torch.linspace(0, config.drop_path_rate, sum(config.depths), device="cpu").split(list(config.depths))
        self.stages = nn.ModuleList(VanStage(config, index, rate.tolist()) for index, rate in enumerate(rates))

    def forward(self, pixels: Tensor) -> Tensor:
        for stage in self.stages:
            pixels = stage(pixels)
        return pixels


class VanPreTrainedModel(PreTrainedModel):
    config: VanConfig
    config_class = VanConfig
    base_model_prefix = "van"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _no_split_modules = ["VanBlock"]
    _can_record_outputs = {"hidden_states": OutputRecorder(VanStage, capture_initial_hidden_state=False)}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Convolutions N(0, 2/fan-out), linear layers cut at 2σ, norms 1/0, scales at their configured value."""
        super()._init_weights(module)
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
        elif isinstance(module, nn.Linear):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, VanScale):
            init.constant_(module.weight, self.config.layer_scale_init_value)


class VanModel(VanPreTrainedModel):
    """The network without its classifier; `pooler_output` is the mean over positions of the last stage."""

    _keys_to_ignore_on_load_unexpected = [r"^classifier\."]

    def __init__(self, config: VanConfig) -> None:
        super().__init__(config)
        self.encoder = VanEncoder(config)
        self.layernorm = nn.LayerNorm(config.hidden_sizes[-1], eps=config.layer_norm_eps)  # published, never used
        self.post_init()

    @capture_outputs
    def forward(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPoolingAndNoAttention:
        last = self.encoder(pixel_values)
        return BaseModelOutputWithPoolingAndNoAttention(last_hidden_state=last, pooler_output=last.mean((-2, -1)))


class VanForImageClassification(VanPreTrainedModel):
    """The network with its linear classifier: the class that the checkpoints were saved from."""

    def __init__(self, config: VanConfig) -> None:
        super().__init__(config)
        self.van = VanModel(config)
        self.classifier = nn.Linear(config.hidden_sizes[-1], config.num_labels or 0)
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutputWithNoAttention:
        outputs = self.van(pixel_values, **kwargs)
        logits = self.classifier(outputs.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
