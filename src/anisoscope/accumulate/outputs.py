"""What a language model puts out, as sums over positions: the size of its logits, and what their gradient becomes.

With z the V logits of a position, p = softmax(z), h the state that enters the head W (V × d), and per jackknife group:

| sum of | is |
|---|---|
| `logsumexp`, `logsumexp_square` | log Σ exp z, and its square (what a z-loss holds down) |
| `logit_norm`, `prediction_entropy` | ‖z‖; −Σ p log p in nats |
| `loss` | −log p(label), over the positions that have one (`asked`) |
| `gradient`, `through` | ‖g‖² and ‖Πg‖² of the gradient g = p − onehot(label) of the loss by the logits |

Π projects on the columns of W: the head passes gW on to the state, and whatever of g is orthogonal to its columns is
lost. ‖Πg‖² = (gW)(WᵀW)⁻¹(gW)ᵀ, from a d×d matrix. Not grouped: Σhhᵀ and Σ(gW)(gW)ᵀ, from which the energy of the
gradient in the top directions of the states follows. Source: Godey & Artzi 2026 (arXiv 2603.10145), which measures the
part of the norm that is lost; the projection is our reading of it.

Memory O(d²); time O(n·V·d) with a loss, O(n·V) without. Logits are read a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.heads import zeros
from anisoscope.accumulate.keys import GROUPS
from anisoscope.errors import StoreError

OF_POSITIONS = ("logsumexp", "logsumexp_square", "logit_norm", "prediction_entropy")
OF_LABELS = ("loss", "gradient", "through")
_AT_ONCE = 2**22  # logits in float32 at a time


class Outputs:
    """The sums of one model's output. `sums[name]`: (g,) of positions, labels and counts; (d, d) of states."""

    def __init__(self, *, vocabulary: int, d: int, groups: int = GROUPS) -> None:
        self.sums = {name: zeros(groups) for name in (*OF_POSITIONS, *OF_LABELS)}
        self.sums |= {name: zeros(groups, dtype=torch.int64) for name in ("positions", "asked")}
        self.sums |= {"states": zeros(d, d), "gradients": zeros(d, d)}
        self.vocabulary = vocabulary

    def update(self, logits: Tensor, groups: Tensor) -> None:
        """Add the logits (n, V) of positions of these groups (n,)."""
        for rows in _slices(logits):
            z = logits[rows].float()
            level = z.logsumexp(-1)
            entropy = level - torch.einsum("nv,nv->n", (z - level[:, None]).exp(), z)
            found = (level, level.double().square(), torch.linalg.vector_norm(z, dim=-1), entropy)
            for name, values in zip(OF_POSITIONS, found, strict=True):
                self._add(name, groups[rows], values)
        self._add("positions", groups, torch.ones_like(groups))

    def ask(self, logits: Tensor, labels: Tensor, states: Tensor, head: Head, groups: Tensor) -> None:
        """Add the loss and its gradient at positions with labels (n,) and states (n, d) before the head."""
        exact = states.double()
        self.sums["states"] += (exact.T @ exact).cpu()
        for rows in _slices(logits):
            log_p, wanted = logits[rows].float().log_softmax(-1), labels[rows, None]
            gradient = log_p.exp().scatter_add_(1, wanted, -torch.ones_like(wanted, dtype=torch.float32))
            passed = (gradient @ head.weight).double()  # (n, d)
            found = (-log_p.gather(1, wanted).squeeze(1), gradient.double().square().sum(1), head.within(passed))
            for name, values in zip(OF_LABELS, found, strict=True):
                self._add(name, groups[rows], values)
            self.sums["gradients"] += (passed.T @ passed).cpu()
        self._add("asked", groups, torch.ones_like(groups))

    def _add(self, name: str, groups: Tensor, values: Tensor) -> None:
        self.sums[name].index_add_(0, groups.cpu(), values.cpu().to(self.sums[name].dtype))

    def merge(self, other: Outputs) -> None:
        if self.vocabulary != other.vocabulary or self.sums["states"].shape != other.sums["states"].shape:
            got, expected = (
                f"{one.vocabulary} logits of {len(one.sums['states'])} dimensions" for one in (other, self)
            )
            raise StoreError("cannot add the sums of another output", got=got, expected=expected)
        for name, mine in self.sums.items():
            mine += other.sums[name]

    def state(self) -> dict[str, NDArray]:
        return {**{name: one.numpy() for name, one in self.sums.items()}, "vocabulary": np.array([self.vocabulary])}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        outputs = cls(vocabulary=int(state["vocabulary"][0]), d=len(state["states"]), groups=len(state["loss"]))
        for name, empty in outputs.sums.items():
            empty.copy_(torch.as_tensor(state[name]))
        return outputs


class Head:
    """The matrix of a head (V, d), with what its gradient needs."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach().float()
        gram = self.weight.double().T @ self.weight.double()
        broken = not bool(gram.isfinite().all())
        self._inverse = torch.full_like(gram, torch.nan) if broken else torch.linalg.pinv(gram, hermitian=True)

    def within(self, passed: Tensor) -> Tensor:
        """‖Πg‖² of each row g, from gW (n, d)."""
        return torch.einsum("nd,de,ne->n", passed, self._inverse, passed)


def _slices(logits: Tensor) -> list[slice]:
    size = max(1, _AT_ONCE // logits.shape[1])
    return [slice(first, first + size) for first in range(0, len(logits), size)]
