"""What a training asks of its attention: scores in low precision, and a bound on the greatest of them.

- `logits = "bfloat16"` (or float16): attention scores and output logits are rounded to that type before their softmax,
  which is made in it, forward and backward. Checkpoints are measured in full precision.
- `qk_clip` (Kimi K2, arXiv 2507.20534): after each step, a head whose greatest score S over the batch exceeds the bound
  τ has its query and key projections, biases included, multiplied by √(τ/S). So the same batch would have given τ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from anisoscope.models.attention_kinds import NAME, VariantAttention, attention_modules

if TYPE_CHECKING:
    from anisoscope.training.recipe import Recipe


def own_kernel(recipe: Recipe) -> bool:
    """Whether attention has to show its scores, which fused kernels never hold."""
    return recipe.qk_clip is not None or recipe.logits != "float32"


def ask(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """Tell the attention of a model what its training needs of it."""
    for part in model.modules():
        if isinstance(part, VariantAttention):
            part.recording = recipe.qk_clip is not None
            part.precision = None if recipe.logits == "float32" else getattr(torch, recipe.logits)
    return model


class QKClip(TrainerCallback):
    """Keeps the greatest attention score of every head below a bound."""

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: PreTrainedModel, **kwargs: Any) -> None:
        for module in attention_modules(model):
            seen = getattr(module, NAME).greatest
            if seen is not None:
                shrink(module, torch.where(seen > self.bound, self.bound / seen, 1.0).sqrt())


@torch.no_grad()
def shrink(module: nn.Module, factors: Tensor) -> None:
    """Multiply queries and keys of each head of a GPT-2 attention by its factor (heads,)."""
    fused: Any = module.c_attn  # weight (hidden, 3·hidden): queries, keys, values; within each, head by head
    width = fused.weight.shape[0]
    columns = factors.repeat_interleave(width // len(factors)).repeat(2)  # (2·hidden,)
    fused.weight[:, : 2 * width] *= columns
    fused.bias[: 2 * width] *= columns


def rounded_loss(logits: Tensor, labels: Tensor, precision: torch.dtype) -> Tensor:
    """The cross-entropy of the next token with logits (B, T, V), softmax and loss in low precision."""
    low = logits[:, :-1].to(precision).flatten(0, 1)
    return nn.functional.cross_entropy(low, labels[:, 1:].flatten()).float()
