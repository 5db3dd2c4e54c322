"""Models stored as ONNX graphs, turned back into the transformers class that they were exported from.

An exporter keeps the names of biases, norms and embeddings, but renames and transposes the matrices of linear layers.
Each of those is found again by the path of its node (`/encoder/layer.0/attention/self/query/MatMul`), or, where nodes
have no paths, by the bias that is added to its product. int8 weights are read back as scale · (q − zero).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

_QUANTISED = "_quantized"


def load(data: bytes) -> Any:
    """The graph of an ONNX file."""
    return onnx.load_model_from_string(data).graph


def weights_of(graph: Any, folder: Path | None = None) -> dict[str, Tensor]:
    """Everything that has a name of the original model, dequantised; `folder` holds what lies beside the file."""
    base = "" if folder is None else str(folder)
    constants = {one.name: numpy_helper.to_array(one, base) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            constants[node.output[0]] = _dequantised(node.input[0], constants, axis=_axis(node))
    found = {name: array for name, array in constants.items() if "." in name and array.dtype == np.float32}
    for name in constants:
        if name.endswith(_QUANTISED) and "." in name:
            found[name.removesuffix(_QUANTISED)] = _dequantised(name, constants)
    found |= _matrices(graph, constants)
    kept = {name: array for name, array in found.items() if not name.endswith(("_scale", "_zero_point"))}
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in kept.items()}


def _axis(node: Any) -> int:
    return next((one.i for one in node.attribute if one.name == "axis"), 1)


def _dequantised(name: str, constants: Mapping[str, np.ndarray], *, axis: int = 1) -> np.ndarray:
    base, rank = name.removesuffix(_QUANTISED), constants[name].ndim
    scale, zero = (constants[f"{base}_{part}"].astype(np.float32) for part in ("scale", "zero_point"))
    if scale.size > 1:  # one scale for each index along an axis
        shape = [-1 if i == axis % rank else 1 for i in range(rank)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return (constants[name].astype(np.float32) - zero) * scale


def _matrices(graph: Any, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights (out, in) of all products with a constant, by the names they had."""
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    found = {}
    for node in graph.node:
        if node.op_type not in ("MatMul", "MatMulInteger") or node.input[1] not in constants:
            continue
        name = node.input[1]
        path = re.fullmatch(r"/(.+)/MatMul(_quant)?", node.name)
        layer = path[1].replace("/", ".") if path else _by_bias(node, users, constants)
        if layer:
            weight = _dequantised(name, constants) if name.endswith(_QUANTISED) else constants[name]
            found[f"{layer}.weight"] = weight.T
    return found


def _by_bias(node: Any, users: Mapping[str, list[Any]], constants: Mapping[str, np.ndarray]) -> str | None:
    """The layer whose bias is added to what a node makes."""
    following = users.get(node.output[0], [])
    if len(following) != 1 or following[0].op_type != "Add":
        return None
    biases = [name for name in following[0].input if name in constants and name.endswith(".bias")]
    return biases[0].removesuffix(".bias") if biases else None


def fill(model: torch.nn.Module, weights: Mapping[str, Tensor], *, but: tuple[str, ...] = ()) -> None:
    """Load the weights that a model has a place for; refuse to leave any place empty but those named."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    given = {name: weights[name].reshape(shape) for name, shape in shapes.items() if name in weights}
    empty = [name for name in model.load_state_dict(given, strict=False).missing_keys if not name.startswith(but)]
    if empty:
        raise ValueError(f"the graph does not hold {empty[0]}, nor {len(empty) - 1} more")
    loaded = model.state_dict()
    for name, tensor in given.items():
        if not torch.equal(loaded[name], tensor):  # two tensors of the graph for one that the class ties
            raise ValueError(f"{name} was overwritten: {type(model).__name__} ties it to another tensor")
