"""TinyViT: a stage of convolutions, then three stages of attention in windows.

Wu et al., *TinyViT: Fast Pretraining Distillation for Small Vision Transformers*, ECCV 2022,
https://arxiv.org/abs/2207.10666; here the variant of MobileSAM (Zhang et al. 2023, https://arxiv.org/abs/2306.14289),
whose last stage keeps the resolution of the one before. Modules are named as in the published checkpoints. A block of
the later stages, with W the cut into windows, B a bias for each distance of two places and DW a depthwise 3×3
convolution with batch norm:

    x ← x + W⁻¹ attention(W(x); softmax(QKᵀ/√d + B)),  x ← DW(x),  x ← x + MLP(LN(x))

Every block gives a map (B, C, H, W). The neck that turns the last map into SAM's features is left out.
"""
# ruff: noqa: RUF012 - the library declares these class attributes as mutable, and a ClassVar would contradict it

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithNoAttention
from transformers.utils.output_capturing import OutputRecorder, capture_outputs


@strict
class TinyVitConfig(PreTrainedConfig):
    """The sizes of a TinyViT; the defaults are those of the image encoder of MobileSAM."""

    model_type = "tinyvit"

    num_channels: int = 3
    image_size: int = 1024
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 160, 320)
    depths: list[int] | tuple[int, ...] = (2, 2, 6, 2)
    num_heads: list[int] | tuple[int, ...] = (2, 4, 5, 10)
    window_sizes: list[int] | tuple[int, ...] = (7, 7, 14, 7)
    merge_strides: list[int] | tuple[int, ...] = (2, 2, 1)
    mlp_ratio: int = 4
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02


def _convolution(channels_in: int, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(c=convolution, bn=nn.BatchNorm2d(channels)))


class TinyVitPatches(nn.Module):
    """Two strided convolutions: a quarter of the image's resolution."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        first = _convolution(channels_in, channels // 2, 3, 2)
        self.seq = nn.Sequential(first, nn.GELU(), _convolution(channels // 2, channels, 3, 2))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.seq(pixels)


class TinyVitInverted(nn.Module):
    """A block of the first stage: widen, look at the neighbours, narrow, add."""

    def __init__(self, channels: int, ratio: int) -> None:
        super().__init__()
        wide = ratio * channels
        self.conv1 = _convolution(channels, wide)
        self.conv2 = _convolution(wide, wide, 3, groups=wide)
        self.conv3 = _convolution(wide, channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x))))))


class TinyVitMerging(nn.Module):
    """To the width, and mostly half the resolution, of the next stage."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(channels_in, channels)
        self.conv2 = _convolution(channels, channels, 3, stride, groups=channels)
        self.conv3 = _convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))


class TinyVitAttention(nn.Module):
    """Attention among the places of a window, with one bias per head for each distance (|Δrow|, |Δcolumn|)."""

    def __init__(self, channels: int, heads: int, window: int, eps: float) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(channels, eps=eps)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))

    def forward(self, x: Tensor) -> Tensor:  # (windows, places, channels)
        heads = self.qkv(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=-1)
        place = torch.arange(self.window, device=x.device)
        apart = (place[:, None] - place[None, :]).abs()
        number = (apart[:, None, :, None] * self.window + apart[None, :, None, :]).flatten(2).flatten(0, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.attention_biases[:, number])
        return self.proj(mixed.transpose(1, 2).flatten(2))


class TinyVitMlp(nn.Module):
    """Norm, widen, narrow."""

    def __init__(self, channels: int, ratio: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=eps)
        self.fc1 = nn.Linear(channels, ratio * channels)
        self.fc2 = nn.Linear(ratio * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(self.norm(x))))


class TinyVitBlock(nn.Module):
    """Attention in windows, a depthwise convolution, a feed-forward network."""

    def __init__(self, config: TinyVitConfig, stage: int) -> None:
        super().__init__()
        channels, self.window = config.hidden_sizes[stage], config.window_sizes[stage]
        self.attn = TinyVitAttention(channels, config.num_heads[stage], self.window, config.layer_norm_eps)
        self.local_conv = _convolution(channels, channels, 3, groups=channels)
        self.mlp = TinyVitMlp(channels, config.mlp_ratio, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.local_conv(x + self._in_windows(x))
        return x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _in_windows(self, x: Tensor) -> Tensor:
        """The map cut into windows (the last ones filled up with zeros), attended, and put together again."""
        images, channels, height, width = x.shape
        side = self.window
        filled = F.pad(x, (0, -width % side, 0, -height % side))
        rows, columns = filled.shape[2] // side, filled.shape[3] // side
        windows = filled.view(images, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
        mixed = self.attn(windows.reshape(-1, side * side, channels))
        whole = mixed.view(images, rows, columns, side, side, channels).permute(0, 5, 1, 3, 2, 4)
        return whole.reshape(filled.shape)[:, :, :height, :width]


class TinyVitStage(nn.Module):
    """Blocks, and the way to the next stage."""

    def __init__(self, config: TinyVitConfig, stage: int) -> None:
        super().__init__()
        sizes = config.hidden_sizes
        self.blocks = nn.ModuleList(
            TinyVitBlock(config, stage) if stage else TinyVitInverted(sizes[0], config.mlp_ratio)
            for _ in range(config.depths[stage])
        )
        last = stage == len(sizes) - 1
        self.downsample = None if last else TinyVitMerging(sizes[stage], sizes[stage + 1], config.merge_strides[stage])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class TinyVitModel(PreTrainedModel):
    """The image encoder without its neck."""

    config: TinyVitConfig
    config_class = TinyVitConfig
    base_model_prefix = "tinyvit"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _no_split_modules = ["TinyVitBlock", "TinyVitInverted"]
    _can_record_outputs = {"hidden_states": OutputRecorder(TinyVitStage, capture_initial_hidden_state=False)}

    def __init__(self, config: TinyVitConfig) -> None:
        super().__init__(config)
        self.patch_embed = TinyVitPatches(config.num_channels, config.hidden_sizes[0])
        self.layers = nn.ModuleList(TinyVitStage(config, stage) for stage in range(len(config.hidden_sizes)))
        self.post_init()

    @capture_outputs
    def forward(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithNoAttention:
        x = self.patch_embed(pixel_values)
        for stage in self.layers:
            x = stage(x)
        return BaseModelOutputWithNoAttention(last_hidden_state=x)
