"""A block of vectors where it is: an array of numpy, or a tensor on an accelerator.

What lies in the machine's memory is worked on by numpy, tensors without a copy, so that commands on files of vectors
never import torch. Only blocks on an accelerator stay tensors, and are summed there (`on_device`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

Block: TypeAlias = "NDArray[np.floating] | Tensor"


def is_tensor(x: Block) -> TypeIs[Tensor]:
    return not isinstance(x, np.ndarray)


def precision(dtype: np.dtype) -> type[np.floating]:
    """float32 where that holds every value of a type, else float64; of whatever byte order.

    >>> precision(np.dtype(np.int16)).__name__, precision(np.dtype(">f8")).__name__
    ('float32', 'float64')
    """
    return np.float32 if np.result_type(dtype, np.float32) == np.float32 else np.float64


def block_of(x: Any, device: str | None = None) -> Block:
    """The rows of x in float32, or in float64 where they need it; on this device, or where they are."""
    if not is_tensor(x) and device in (None, "cpu"):
        return np.asarray(x, precision(x.dtype))
    import torch

    x = x.detach() if is_tensor(x) else torch.from_numpy(x)
    x = (x if x.dtype == torch.float64 else x.float()).to(device or x.device)
    return x.numpy() if x.device.type == "cpu" else x


def exact(x: Block) -> Block:
    """The same in float64."""
    return x.double() if is_tensor(x) else x.astype(float)


def rows_of(x: Block, rows: NDArray[Any]) -> Block:
    """Some rows, by number or by mark."""
    if not is_tensor(x):
        return x[rows]
    import torch

    return x[torch.from_numpy(rows).to(x.device)]


def array_of(x: Any) -> NDArray[Any]:
    """A block, or a sum, as an array in memory."""
    return x.detach().cpu().numpy() if is_tensor(x) else x
