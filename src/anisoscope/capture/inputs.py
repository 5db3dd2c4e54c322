"""The one place that brings inputs to a model: its device, and its precision for sounds and pictures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def model_inputs(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of one forward pass; the cache of keys and values is left out."""
    weight = next(weight for weight in module.parameters() if weight.is_floating_point())
    moved: dict[str, Any] = {
        name: tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in inputs.items()
    }
    if "use_cache" in inspect.signature(module.forward).parameters:
        moved["use_cache"] = False
    return moved
