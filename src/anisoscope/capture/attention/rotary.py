"""Rotary positions: which layers turn their queries and keys, and the way there and back.

A layer is given the cosines and sines of its positions whether it uses them or not (some layers of Cohere 2, EXAONE 4
and SmolLM 3 do not), so its file's own function is watched: a layer turns its vectors if it calls that. The inverse of
a rotation is the same rotation with the sine negated. A part of the dimensions may not be rotated: the last ones, or,
in latent attention (DeepSeek), the first.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from anisoscope.errors import ModelError

_ROTATES = "apply_rotary"  # what the functions of the library begin with


@dataclass(frozen=True)
class Rotation:
    """How one call of a layer turns its queries and keys (B, heads, T, d_head)."""

    rotate: Callable[..., tuple[Tensor, Tensor]]
    cos: Tensor
    sin: Tensor
    last: bool  # whether the last dimensions are rotated, where not all are

    def there(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self._turned(query, key, self.cos, self.sin)

    def back(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        length = self.cos.square() + self.sin.square()  # 1, unless the rotation also scales (YaRN)
        return self._turned(query, key, self.cos / length, -self.sin / length)

    def _turned(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        width = cos.shape[-1]
        part = slice(query.shape[-1] - width, None) if self.last else slice(0, width)
        both = query.clone(), key.clone()
        for whole, turned in zip(both, self.rotate(query[..., part], key[..., part], cos, sin), strict=True):
            whole[..., part] = turned
        return both


class Rotations:
    """Until it is removed, it knows which attention modules rotate, and by what."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self._given: dict[nn.Module, Any] = {}
        self._called = False  # since the attention module at work began
        self._own = {file: _functions(file) for file in {_file(part) for part in parts}}
        for file, functions in self._own.items():
            for name, function in functions.items():
                setattr(file, name, self._noting(function))
        self._handles = [part.register_forward_pre_hook(self._begin, with_kwargs=True) for part in parts]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for file, functions in self._own.items():
            for name, function in functions.items():
                setattr(file, name, function)
        self._given.clear()

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            return function(*args, **kwargs)

        return noting

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _says_so(module):
            self._called = False
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        if given.get("position_embeddings") is not None:
            self._given[module] = given["position_embeddings"]

    def of(self, module: nn.Module) -> Rotation | None:
        """How the attention module that is at work turned its vectors; None where it did not."""
        own, angles = self._own.get(_file(module), {}), self._given.get(module)
        unturned = getattr(module, "use_rope", True) is False or (_says_so(module) and not self._called)
        if unturned or (not own and angles is None):
            return None
        rotate = own.get("apply_rotary_pos_emb")
        if rotate is None or not isinstance(angles, tuple):
            raise ModelError(
                "the rotary positions of this model cannot be followed",
                where=type(module).__name__,
                do="take queries and keys after rotation (leave out --before-rotary)",
            )
        return Rotation(rotate, *angles, last=hasattr(module, "qk_rope_head_dim"))


def _file(module: nn.Module) -> ModuleType:
    return sys.modules[type(module).__module__]


def _functions(file: ModuleType) -> dict[str, Callable[..., Any]]:
    return {name: one for name, one in vars(file).items() if name.startswith(_ROTATES) and inspect.isfunction(one)}


def _says_so(module: nn.Module) -> bool:
    """Whether the module itself calls one of these functions."""
    return any(name.startswith(_ROTATES) for name in type(module).forward.__code__.co_names)
