"""The observer of a language model's output: logits, and the gradient of the loss where labels are known.

Every position that is not padding counts. Labels are the next tokens of a causal model, or those that are given. What
enters the head is known where the head is one matrix (and a bias) and nothing is done to its logits afterwards; where
it is more, there is no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anisoscope.accumulate.keys import group_of, sequence_keys
from anisoscope.accumulate.outputs import Head, Outputs
from anisoscope.capture.output import SITE, head_input, next_tokens, output_head
from anisoscope.runs.work.collected import Watching

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel


class OutputSums(Watching):
    """The sums of a model's logits (`logits`); none for a model without a head. `labels` (B, T) of the one batch."""

    kind = Outputs

    def __init__(self, labels: Tensor | None = None) -> None:
        super().__init__()
        self.labels = labels
        self._model: OpenModel | None = None
        self._batch: Batch | None = None
        self._entered: list[Tensor] = []
        self._head: Head | None = None

    def prepare(self, model: OpenModel, batch: Batch) -> None:
        head = output_head(model.module)
        self._head = None if head is None else Head(head.weight)

    @contextmanager
    def watch(self, model: OpenModel, batch: Batch) -> Iterator[None]:
        self._model, self._batch = model, batch
        with head_input(model.module) as self._entered:
            yield

    def after(self, output: Any) -> None:
        assert self._model is not None
        assert self._batch is not None
        head, logits = output_head(self._model.module), output.logits
        valid = self._batch.valid.to(logits.device)
        if valid.shape != logits.shape[:2]:
            return
        if SITE not in self.parts:
            self.parts[SITE] = Outputs(vocabulary=logits.shape[-1], d=head.weight.shape[1])
        groups = torch.from_numpy(group_of(sequence_keys(self._batch.keys))).to(logits.device)[:, None].expand_as(valid)
        self.parts[SITE].update(logits[valid], groups[valid])
        labels = next_tokens(self._model.module, self._batch, self.labels)
        if labels is None or self._head is None or len(self._entered) != 1:
            return
        states, asked = self._entered[0], valid & (labels.to(valid.device) >= 0)
        if states.shape[:2] == valid.shape and bool(asked.any()) and _is_linear(head, states[asked], logits[asked]):
            chosen = labels.to(valid.device)[asked]
            self.parts[SITE].ask(logits[asked], chosen, states[asked], self._head, groups[asked])

    def about(self) -> dict[str, Any]:
        return {"protocol": {"logits": "every position but padding"}, "sites": [], "notes": []}


def _is_linear(head: Any, states: Tensor, logits: Tensor) -> bool:
    """Whether the logits are those of the head's matrix and bias, at one position."""
    made = states[:1] @ head.weight.T + (0 if getattr(head, "bias", None) is None else head.bias)
    return bool(torch.allclose(made.float(), logits[:1].float(), rtol=1e-2, atol=1e-3 * float(logits[:1].abs().max())))
