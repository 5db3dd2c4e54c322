"""A causal model without its final norm: the last block's output goes to the head as it is.

The config records it as `anisoscope_without_final_norm = true`; the norm's weights stay in the checkpoint, untrained,
so that `from_pretrained` finds them, and `restore` makes the norm pass its input on again.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel

from anisoscope.errors import ModelError

NAME = "anisoscope_without_final_norm"
PLACES = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "llama": "norm"}


def remove(model: PreTrainedModel) -> PreTrainedModel:
    """Take the final norm out, in place."""
    kind = model.config.model_type
    if kind not in PLACES:
        raise ModelError("cannot take out the final norm of this model", got=kind, expected=", ".join(PLACES))
    norm: nn.Module = getattr(model.base_model, PLACES[kind]).requires_grad_(False)
    norm.forward = _pass
    setattr(model.config, NAME, True)
    return model


def _pass(states: Tensor) -> Tensor:
    return states


def restore(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Bring a model that `from_pretrained` opened from `folder` back to what was trained."""
    return remove(model) if getattr(model.config, NAME, False) else model
