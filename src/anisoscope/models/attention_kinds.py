"""Self-attention, revised: nine ways to turn queries and keys into weights, side by side.

With x_ij = s·q_i·k_j (s = 1/√d_h) over the keys j that row i may see:

| variant | weight of key j in row i | why |
|---|---|---|
| `softmax` | e^x_ij / Σ_j e^x_ij | control: the model as published, its own kernel |
| `softmax_one` | e^x_ij / (1 + Σ_j e^x_ij) | a row may give nothing to anybody (no sink needed) |
| `sigmoid` | σ(x_ij − log n_i), n_i keys seen | no competition between keys (Ramapuram et al. 2409.04431) |
| `cosine` | softmax_j(τ_h q_i·k_j / ‖q_i‖‖k_j‖) | sharpness from a learned τ per head, not from norms (Swin v2) |
| `query_centred` | softmax_j(s (q_i − q̄_i)·k_j) | the mean query is removed, so a drift of the queries cannot act |
| `linear` | φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j), φ = elu + 1 | no softmax at all (Katharopoulos et al. 2006.16236) |
| `key_centred` | softmax_j(s q_i·(k_j − k̄)) | the weights of softmax: q_i·k̄ is the same for all j |
| `gated` | softmax, then head output · σ(x_i·w_h) | a head may be silent (Qiu et al. 2505.06708, one gate per head) |
| `no_bias` | softmax | biases of query, key and value held at zero |

τ_h starts at 10. Sigmoid attention without the shift by log n_i is that of Gu et al. 2410.10781.

q̄_i is the mean query over the positions that row i may see itself: the valid positions of its own sequence, up to i
in a causal model. So no row depends on another sequence of the batch, nor on the future. Where positions are rotated
(RoPE) this is the mean of the rotated queries, as the scores see them. k̄ is the mean key over the valid positions of
the sequence; whatever is subtracted from all keys of a row leaves its softmax as it is, so nothing can leak through it.

The weights of `softmax_one` and `sigmoid` do not sum to 1: their entropy is that of the row divided by its sum. Those
of `linear` are computed as a matrix here, so that they can be watched; summing φ(k_j)v_jᵀ first gives the same in O(T).

How it is wired: `apply` hangs a `VariantAttention` module named `anisoscope_attention` on every attention module; its
`transform`, `weights` and `finish` are the whole difference to softmax attention, and the function registered with
transformers is nothing but these three around a matrix product. A probe that computes attention itself calls the same
three. Learned extras are ordinary parameters of that module, saved in `model.safetensors`; the config records the
variant as `anisoscope_attention`; `restore` brings both back after `from_pretrained`, which knows neither.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from anisoscope.errors import ModelError, UsageError

NAME = "anisoscope_attention"
"""The name of the hung module, of the config field, and of the function registered with transformers."""

OWN_KERNEL = ("softmax_one", "sigmoid", "cosine", "query_centred", "key_centred", "gated", "linear")
VARIANTS = ("softmax", *OWN_KERNEL, "no_bias")
FAMILIES = ("bert", "gpt2", "gpt_neox", "llama", "vit")
FIRST_SCALE = 10.0

PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "c_attn", "query_key_value")
"""What the families call the linear maps that make queries, keys and values, apart or fused."""


def transform(
    variant: str, q: Tensor, k: Tensor, extras: Any, *, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """The q and k (B, heads, T, d_h) whose products, times `scaling`, are the scores of the variant.

    `extras` holds what the variant has learned: the `VariantAttention` of the attention module.
    """
    if variant == "cosine":
        scale = extras.log_scale.exp().to(q.dtype)[:, None, None] / scaling  # (heads, 1, 1)
        return nn.functional.normalize(q, dim=-1) * scale, nn.functional.normalize(k, dim=-1)
    if variant == "query_centred":
        return q - mean_query(q, k, mask), k
    if variant == "key_centred":
        return q, k - mean_key(k, mask)
    if variant == "linear":
        return nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    return q, k


def weights(variant: str, scores: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of scores (B, heads, rows, T), in at least float32. What the additive mask hides gets exactly 0.

    >>> scores = torch.tensor([[[[0.0, 0.0, 0.0]]]])
    >>> [round(weights(variant, scores, None).sum().item(), 2) for variant in ("softmax", "softmax_one", "sigmoid")]
    [1.0, 0.75, 0.75]
    """
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if variant == "linear":  # scores are positive, and their scale cancels
        seen = scores.masked_fill(~visible(scores, mask), 0.0)
        return seen / seen.sum(-1, keepdim=True).clamp_min(torch.finfo(seen.dtype).tiny)
    masked = scores if mask is None else scores + mask
    if variant == "sigmoid":
        seen = visible(masked, mask).sum(-1, keepdim=True).clamp_min(1)  # (B, 1, rows, 1)
        return torch.sigmoid(masked - seen.to(masked.dtype).log())
    if variant == "softmax_one":
        nobody = torch.zeros_like(masked[..., :1])
        return torch.cat((masked, nobody), dim=-1).softmax(-1)[..., :-1]
    return masked.softmax(-1)


def visible(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Which keys each row may see: an additive mask hides with the lowest number of its type."""
    if mask is None:
        return torch.ones_like(scores[:, :1], dtype=torch.bool)
    return mask > torch.finfo(mask.dtype).min / 2


def mean_query(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The mean query over the positions that each row may see: (B, heads, 1 or T, d_h)."""
    if q.shape[-2] != k.shape[-2]:
        raise ModelError(
            "attention with centred queries needs the whole sequence at once",
            got=f"{q.shape[-2]} queries for {k.shape[-2]} keys",
            do="call the model with use_cache=False",
        )
    if mask is None:
        return q.mean(-2, keepdim=True)
    seen = visible(q, mask).to(q.dtype)  # (B, 1, T, T)
    return seen @ q / seen.sum(-1, keepdim=True).clamp_min(1)


def mean_key(k: Tensor, mask: Tensor | None) -> Tensor:
    """The mean key over the positions of a sequence that any row may see: (B, heads, 1, d_h)."""
    if mask is None:
        return k.mean(-2, keepdim=True)
    seen = visible(k, mask).any(-2, keepdim=True).to(k.dtype)  # (B, 1, 1, T)
    return seen @ k / seen.sum(-1, keepdim=True).clamp_min(1)


class VariantAttention(nn.Module):
    """What hangs on one attention module: the name of the variant, its learned extras, its steps.

    A training may ask for more: `precision` rounds scores and weights to that type, as low-precision kernels do;
    `recording` keeps in `greatest` the greatest score of each head over the last batch.
    """

    def __init__(self, variant: str, *, heads: int, hidden: int, initializer_range: float) -> None:
        super().__init__()
        self.variant = variant
        self.precision: torch.dtype | None = None
        self.recording = False
        self.greatest: Tensor | None = None
        self.gate: Tensor | None = None
        if variant == "cosine":
            self.log_scale = nn.Parameter(torch.full((heads,), FIRST_SCALE).log())
        if variant == "gated":
            self.gating = nn.Linear(hidden, heads, bias=False)
            nn.init.normal_(self.gating.weight, std=initializer_range)

    def transform(self, q: Tensor, k: Tensor, mask: Tensor | None, *, scaling: float) -> tuple[Tensor, Tensor]:
        return transform(self.variant, q, k, self, mask=mask, scaling=scaling)

    def weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return weights(self.variant, scores, mask)

    def finish(self, output: Tensor) -> Tensor:
        """What becomes of the head outputs (B, T, heads, d_h)."""
        if self.gate is None:
            return output
        gate, self.gate = self.gate, None
        return output * gate.unsqueeze(-1).to(output.dtype)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scaling: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Head outputs (B, T, heads, d_h) and weights (B, heads, T, T) of queries, keys and values."""
        groups = q.shape[1] // k.shape[1]  # grouped-query attention: several query heads share a key head
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mask = None if mask is None else mask[..., : k.shape[-2]]
        scored_q, scored_k = self.transform(q, k, mask, scaling=scaling)
        scores = scored_q @ scored_k.transpose(-1, -2) * scaling
        if self.recording and self.training:
            hidden = scores.detach().masked_fill(~visible(scores, mask), -torch.inf)
            self.greatest = hidden.amax((0, 2, 3))  # (heads,)
        if self.precision is None:
            probabilities = self.weights(scores, mask).to(v.dtype)
        else:
            low = scores.to(self.precision).masked_fill(~visible(scores, mask), -torch.inf)
            probabilities = low.softmax(-1).to(v.dtype)
        dropped = nn.functional.dropout(probabilities, p=dropout, training=self.training)
        return self.finish((dropped @ v).transpose(1, 2).contiguous()), probabilities

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the attention module runs: the gates of its input (B, T, hidden), kept until `finish`."""
        hidden = args[0] if args else kwargs["hidden_states"]
        self.gate = torch.sigmoid(self.gating(hidden))  # (B, T, heads)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The function that transformers calls for a model with a variant; `options` may hold scaling and dropout."""
    variant: VariantAttention = getattr(module, NAME)
    scaling = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return variant.attend(query, key, value, attention_mask, scaling=scale, dropout=options.get("dropout", 0.0))


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)


def apply(model: PreTrainedModel, variant: str, *, own_kernel: bool = False) -> PreTrainedModel:
    """Give a model one of the variants, in place; its other weights stay as they are.

    `own_kernel` makes softmax attention a variant too, for a training that needs its scores.
    """
    if variant not in VARIANTS:
        raise UsageError("unknown attention variant", got=variant, expected=", ".join(VARIANTS))
    if variant == "softmax" and not own_kernel:
        return model
    modules = attention_modules(model)
    setattr(model.config, NAME, variant)
    if variant == "no_bias":
        hold_biases_at_zero(modules)
        return model
    learning = any(parameter.requires_grad for parameter in model.parameters())
    sizes = {"heads": model.config.num_attention_heads, "hidden": model.config.hidden_size}
    for module in modules:
        extras = VariantAttention(variant, initializer_range=model.config.initializer_range, **sizes)
        extras.to(dtype=model.dtype, device=model.device).requires_grad_(learning).train(module.training)
        module.add_module(NAME, extras)
        if variant == "gated":
            module.register_forward_pre_hook(extras.see, with_kwargs=True)
    model.set_attn_implementation(NAME)
    return model


def restore(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Bring back the variant of a model that `from_pretrained` opened from `folder`.

    Without one nothing happens, nor with one that is back already. The folder may hold the model with its head and the
    model may be without, or the other way round.
    """
    variant = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")).get(NAME, "softmax")
    if variant == "softmax" or any(isinstance(module, VariantAttention) for module in model.modules()):
        return model
    apply(model, variant)
    stored = _stored_extras(Path(folder))
    for name, parameter in model.named_parameters():
        if f".{NAME}." not in name:
            continue
        tensor = stored.get(_place(name))
        if tensor is None or tensor.shape != parameter.shape:
            raise ModelError(
                f"the weights of {variant} attention are not in the checkpoint", where=folder, expected=name
            )
        parameter.data.copy_(tensor)
    return model


def _stored_extras(folder: Path) -> dict[tuple[int, str], Tensor]:
    """The tensors of a checkpoint that belong to the variant, by place, from one file or from shards."""
    extras = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            extras |= {_place(key): file.get_tensor(key) for key in file.keys() if f".{NAME}." in key}  # noqa: SIM118
    return extras


def _place(name: str) -> tuple[int, str]:
    """(layer, parameter) of an extra: the path between them differs with and without head, in memory and on disk.

    >>> _place("vit.encoder.layer.3.attention.anisoscope_attention.gating.weight")
    (3, 'gating.weight')
    """
    path, parameter = name.split(f".{NAME}.")
    return int([part for part in path.split(".") if part.isdigit()][-1]), parameter


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The self-attention modules of a model, first layer first: those that own a projection to queries."""
    if model.config.model_type not in FAMILIES:
        raise ModelError(
            "cannot vary the attention of this model", got=model.config.model_type, expected=", ".join(FAMILIES)
        )
    return [module for module in model.modules() if any(name in PROJECTIONS for name, _ in module.named_children())]


def hold_biases_at_zero(modules: list[nn.Module]) -> None:
    """Set the biases of query, key and value to zero and take them out of training.

    They stay in the checkpoint as zeros, so anything that reads the published class gets the same model.
    """
    projections = [child for module in modules for name, child in module.named_children() if name in PROJECTIONS]
    biases = [child.bias for child in projections if isinstance(child.bias, nn.Parameter)]
    if not biases:
        raise UsageError("no_bias changes nothing here: this model has no bias in its queries, keys and values")
    for bias in biases:
        bias.requires_grad_(False)
        bias.data.zero_()
