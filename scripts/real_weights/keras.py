"""ResNet-50 as Keras publishes it, stored by TensorFlow.js: shards of float32, one table of names and shapes.

Keras puts the stride of a stage into its first 1×1 convolution (the original paper's ResNet; `downsample_in_bottleneck`
in transformers), has a bias in every convolution, which the batch norm after it absorbs, and reads BGR images from
which a mean is subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

_EPS = 1e-3  # of Keras' batch norms; transformers' have 1e-5
_BLOCKS = (3, 4, 6, 3)
_MEAN_BGR = (103.939, 116.779, 123.68)


def read_weights(model: bytes, shards: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    """The named arrays of a TensorFlow.js model."""
    arrays = {}
    for group in json.loads(model)["weightsManifest"]:
        data, at = b"".join(shards[path] for path in group["paths"]), 0
        for one in group["weights"]:
            count = int(np.prod(one["shape"], dtype=int))
            arrays[one["name"]] = np.frombuffer(data, np.float32, count, at).reshape(one["shape"])
            at += 4 * count
    return arrays


def rename(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Keras' names to those of ResNetModel: (conv, norm) pairs with the bias folded and BGR turned into RGB."""
    weights = _layer(arrays, "conv1", "bn_conv1", "embedder.embedder")
    first = weights["embedder.embedder.convolution.weight"]
    weights["embedder.embedder.convolution.weight"] = first.flip(1)
    for stage, blocks in enumerate(_BLOCKS):
        for block in range(blocks):
            here, there = f"{stage + 2}{'abcdef'[block]}_branch", f"encoder.stages.{stage}.layers.{block}"
            for part, name in enumerate(("2a", "2b", "2c")):
                weights |= _layer(arrays, f"res{here}{name}", f"bn{here}{name}", f"{there}.layer.{part}")
            if block == 0:
                weights |= _layer(arrays, f"res{here}1", f"bn{here}1", f"{there}.shortcut")
    return weights


def _layer(arrays: Mapping[str, np.ndarray], conv: str, norm: str, target: str) -> dict[str, Tensor]:
    kernel, bias = (torch.from_numpy(arrays[f"{conv}/{part}"].copy()) for part in ("kernel", "bias"))
    gamma, beta, mean, var = (
        torch.from_numpy(arrays[f"{norm}/{part}"].copy())
        for part in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    return {
        f"{target}.convolution.weight": kernel.permute(3, 2, 0, 1).contiguous(),  # (out, in, high, wide)
        f"{target}.normalization.weight": gamma,
        f"{target}.normalization.bias": beta,
        f"{target}.normalization.running_mean": mean - bias,
        f"{target}.normalization.running_var": var + _EPS - 1e-5,
        f"{target}.normalization.num_batches_tracked": torch.tensor(0),
    }


def resnet_config(**changes: Any) -> transformers.ResNetConfig:
    """ResNet-50 with strides where Keras has them."""
    return transformers.ResNetConfig(downsample_in_bottleneck=True, num_labels=1000, **changes)


def resnet(model: bytes, shards: Mapping[str, bytes], target: Path) -> None:
    """A folder of transformers with classifier and image processor."""
    arrays = read_weights(model, shards)
    network = transformers.ResNetForImageClassification(resnet_config())
    network.resnet.load_state_dict(rename(arrays), strict=True)
    kernel, bias = (torch.from_numpy(arrays[f"fc1000/{part}"].copy()) for part in ("kernel", "bias"))
    network.classifier[1].load_state_dict({"weight": kernel.T.contiguous(), "bias": bias})
    network.save_pretrained(target)
    mean = [value / 255 for value in reversed(_MEAN_BGR)]
    transformers.ConvNextImageProcessorPil(
        size={"shortest_edge": 224}, crop_pct=0.875, image_mean=mean, image_std=[1 / 255] * 3
    ).save_pretrained(target)
