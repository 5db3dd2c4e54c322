"""How weights move at a step, where not by AdamW alone.

- `optimiser = "coupled_adam"` (Stollenwerk & Stollenwerk 2025, arXiv 2502.08441): Adam divides the step of each token's
  embedding by the size of that token's own gradients, so the steps of a table do not sum to zero as its gradients
  nearly do, and its mean drifts. Coupled Adam averages the second moment of input and output embeddings over the
  vocabulary V, for each dimension; everything else is AdamW:

      v ← β₂ v + (1 − β₂) 1/V Σ_i g_i²,   θ_i ← θ_i − η m̂_i / (√v̂ + ε)

- `optimiser = "muon"` (`torch.optim.Muon`): the matrices of the blocks, as they are stored, move by the orthogonalised
  momentum, at a learning rate that gives its steps the size of AdamW's (`match_rms_adamw`); embeddings, norms and
  biases by AdamW. With `qk_clip` it is MuonClip (Kimi K2, arXiv 2507.20534).
- `centre_output` (arXiv 2601.02031): after each step the mean row is subtracted from the output embeddings, which
  changes no prediction by itself. Where they are also the input embeddings (GPT-2), those are centred with them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel, TrainerCallback

if TYPE_CHECKING:
    from anisoscope.training.recipe import Recipe

BETAS = (0.9, 0.98)


class CoupledAdam(Optimizer):
    """AdamW for tables (V, d) whose second moment is a mean over the V rows."""

    def __init__(self, params: Any, *, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": BETAS, "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._move(table, table.grad, group)

    def _move(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (first, second), rate = group["betas"], group["lr"]
        state = self.state[table]
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table[0])}
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].lerp_(gradient.square().mean(0), 1 - second)  # (d,)
        size = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt() + group["eps"]
        table.mul_(1 - rate * group["weight_decay"])
        table.sub_(rate / (1 - first ** state["step"]) * state["exp_avg"] / size)


class Joint(Optimizer):
    """Several optimisers as one, each for one group of parameters; groups and state are held here."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state  # a state that was loaded is a new one
            part.step()


def make_optimiser(model: nn.Module, recipe: Recipe, *, decayed: Container[str]) -> Optimizer:
    """The optimiser of a recipe other than AdamW, with weight decay for the parameters that are named."""
    special = _tables(model) if recipe.optimiser == "coupled_adam" else _matrices(model)
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((id(parameter) in special, name in decayed), []).append(parameter)
    parts: list[Optimizer] = []
    for (own, decays), parameters in groups.items():
        options: Any = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay if decays else 0.0}
        if not own:
            parts.append(AdamW(parameters, betas=BETAS, **options))
        elif recipe.optimiser == "coupled_adam":
            parts.append(CoupledAdam(parameters, **options))
        else:
            parts.append(Muon(parameters, adjust_lr_fn="match_rms_adamw", **options))
    return Joint(parts)


def _tables(model: Any) -> set[int]:
    """Input and output embeddings of tokens, by id; tied ones are the same."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return {id(module.weight) for module in modules if module is not None}


def _matrices(model: Any) -> set[int]:
    """The matrices that multiply hidden states, by id: no embeddings, no positions, no output head."""
    tables = _tables(model) | {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return {id(parameter) for parameter in model.parameters() if parameter.ndim == 2} - tables


class CentreOutput(TrainerCallback):
    """Keeps the mean of the output embeddings at zero."""

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, *, model: PreTrainedModel, **kwargs: Any) -> None:
        table: Any = model.get_output_embeddings()
        table.weight -= table.weight.mean(0)
