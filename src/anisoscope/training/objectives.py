"""What a model is trained for: the loss of one batch.

- `mlm`: cross-entropy of the masked tokens; `clm`: of the next token; `classify`: of the label of an image. These are
  the losses of the transformers classes, untouched.
- `headless` (contrastive weight tying, Godey et al. 2023, arXiv 2309.08351): no vocabulary head; each hidden state
  must find the input embedding of its own target among those of all N targets of the batch, at temperature 1:

      L = −1/N Σ_i log( exp(h_i·e(x_i)) / Σ_j exp(h_i·e(x_j)) )

  Gradients flow into both sides. Targets that occur twice in a batch count twice in the sum, as in the authors' code:
  for the parameters this is cross-entropy over the types of the batch with their counts as prior.
  Cost O(N²·d), N the masked positions (or the positions that have a successor).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from anisoscope.training.text import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def contrastive_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In-batch contrastive loss of hidden states (N, d) against the embeddings of their targets (N, d).

    >>> apart = 20 * torch.eye(3)
    >>> round(contrastive_loss(apart, apart).item(), 6), round(contrastive_loss(0 * apart, apart).item(), 4)
    (0.0, 1.0986)
    """
    scores = hidden @ targets.T  # (N, N)
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def headless_loss(model: PreTrainedModel, batch: dict[str, torch.Tensor], *, causal: bool) -> tuple[torch.Tensor, Any]:
    """The headless loss of a batch, and the model's output.

    `labels` hold the target tokens: of the position itself for masked models, shifted here by one for causal ones.
    """
    labels = batch["labels"]
    output = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    hidden = output.last_hidden_state
    if causal:
        hidden, labels = hidden[:, :-1], labels[:, 1:]
    wanted = labels != IGNORED
    targets = model.get_input_embeddings()(labels[wanted])  # (N, d)
    return contrastive_loss(hidden[wanted], targets), output
