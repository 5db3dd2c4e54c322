"""What a model is trained for: the loss of one batch.

- `mlm`: cross-entropy of the masked tokens; `clm`: of the next token; `classify`: of the label of an image. These are
  the losses of the transformers classes, untouched.
- `headless` (contrastive weight tying, Godey et al. 2023, arXiv 2309.08351): no vocabulary head; each hidden state
  must find the input embedding of its own target among those of all N targets of the batch, at temperature 1:

      L = −1/N Σ_i log( exp(h_i·e(x_i)) / Σ_j exp(h_i·e(x_j)) )

  Gradients flow into both sides. Targets that occur twice in a batch count twice in the sum, as in the authors' code:
  for the parameters this is cross-entropy over the types of the batch with their counts as prior.
  Cost O(N²·d), N the masked positions (or the positions that have a successor).
- `isotropy_weight` λ adds a term to any of them, while training (I-STAR, Rudman & Eickhoff 2023, arXiv 2305.19358):
  λ(1 − IsoScore*), of the states of all blocks together. IsoScore* is IsoScore, (PR − 1)/(d − 1) with
  PR = (tr C)²/tr C², of the covariance shrunk towards its own scale: (1 − ζ)C + ζ(tr C/d)I, ζ = 0.2. The authors shrink
  towards the covariance of a larger sample, drawn once an epoch; a training that sees each text once has no epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from anisoscope.training.data.text import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel


SHRINKAGE = 0.2


def contrastive_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In-batch contrastive loss of hidden states (N, d) against the embeddings of their targets (N, d).

    >>> apart = 20 * torch.eye(3)
    >>> round(contrastive_loss(apart, apart).item(), 6), round(contrastive_loss(0 * apart, apart).item(), 4)
    (0.0, 1.0986)
    """
    scores = hidden @ targets.T  # (N, N)
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def isoscore_star(points: torch.Tensor, *, shrinkage: float = SHRINKAGE) -> torch.Tensor:
    """IsoScore* of points (N, d), between 0 and 1, with a gradient. Cost O(N·d²).

    >>> plane = torch.eye(4)[:3].repeat(2, 1) * torch.tensor([[1.0]] * 3 + [[-1.0]] * 3)  # three of four dimensions
    >>> [round(isoscore_star(plane, shrinkage=zeta).item(), 4) for zeta in (0.0, 0.2, 1.0)]
    [0.6667, 0.7656, 1.0]
    """
    centred, d = points - points.mean(0), points.shape[1]
    shrunk = (1 - shrinkage) * centred.T @ centred  # (d, d)
    size = centred.square().sum()  # the trace, which shrinking keeps
    shrunk = shrunk + shrinkage * size / d * torch.eye(d, dtype=points.dtype, device=points.device)
    return (size.square() / shrunk.square().sum() - 1) / (d - 1)


def isotropy_penalty(hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
    """1 − IsoScore* of the states (B, T, d) of all blocks together; the embeddings, which come first, are left out."""
    return 1 - isoscore_star(torch.cat([states.flatten(0, 1) for states in hidden_states[1:]]))


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
