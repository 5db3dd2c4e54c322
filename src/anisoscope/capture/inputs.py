"""What a forward pass is called with: the inputs of a batch where the model is, in its precision, and no cache.

Everything that runs a model on a batch goes through here, so that a model on a GPU or in half precision works the same
everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def model_inputs(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """The keyword arguments of `module(**…)`: ids and masks keep their type, pixels and sounds get the model's.

    `use_cache=False` where the forward pass takes it: keys and values of earlier steps are of no use here.
    """
    weight = next((weight for weight in module.parameters() if weight.is_floating_point()), None)
    taken = inspect.signature(module.forward).parameters
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in taken else {}
    if weight is None:
        return {**inputs, **options}
    device = "cpu" if weight.is_meta else weight.device  # offloaded: accelerate brings inputs and weights together
    moved = {
        name: tensor.to(device, weight.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in inputs.items()
    }
    return moved | options
