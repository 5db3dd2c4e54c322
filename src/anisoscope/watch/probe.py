"""A fixed probe of a model that trains: the same inputs, run now and again, measured as `anisoscope sweep` measures.

    probe = Probe(texts, tokenizer)
    sums = probe.run(model)              # hidden states and attention in one pass, as sums
    rows = sums.as_rows(step=1000)       # the rows that a sweep has for the checkpoint of that step

The pass is made in eval mode, without gradients and outside autocast; afterwards every part of the model is in the mode
that it was in. No random number is drawn and no weight is touched. A head that is not a language model's is left out,
unless weights are sharded: those only come together when the whole model runs. Texts are cut into batches whose logits
stay within 256 MB; sharded heads have no logits here, and `logits=False` leaves any head out. The gradient at the head
is computed from the logits, where the batch has `labels` or the model is causal: nothing is differentiated.

The spectrum comes from a fixed sample of states at each site (hashed by sequence and position, so the same ones at
every step), by the smaller of its two Gram matrices: its rank is at most their number, which `n` says.

Cost: about one step of training with a batch as large as the probe, of which the forward pass is a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.accumulate.threads import small_matrices
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.output import batch_positions, output_head
from anisoscope.capture.sites import body_of
from anisoscope.errors import InputError, UsageError
from anisoscope.inference.directions import direction_estimates
from anisoscope.inference.extremes import SAMPLED, enters, extreme_estimates
from anisoscope.inference.spectra import sampled_spectrum
from anisoscope.inputs.files import digest
from anisoscope.inputs.sources import Source, open_source
from anisoscope.models.batches.plan import Batch, make_batches
from anisoscope.models.devices import sums_device
from anisoscope.models.encoders import POOLS, pooling_encoder
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.study import words_of
from anisoscope.runs.table import Row, row_of
from anisoscope.runs.work.observers import AttentionSums, HiddenSums
from anisoscope.runs.work.observers.embeddings import EmbeddingSums
from anisoscope.runs.work.observers.outputs import OutputSums
from anisoscope.runs.work.passes import observe
from anisoscope.studies.attention.peaks import PARTS
from anisoscope.studies.attention.rows import attention_rows
from anisoscope.studies.measure.hidden import output_rows

LENGTH = 128
SAMPLE = 64  # queries and keys kept whole, to draw clouds from
SPECTRUM = SAMPLED  # states of a site kept whole, for its spectrum
SPECTRAL = ("effective_rank", "rankme", "power_law_alpha")
OF_HEADS = (
    *("query_key_cosine", "query_key_dot", "query_drift_ratio", "key_drift_ratio"),
    *("entropy", "entropy_normalised", "sink_share", "salience_share", "entropy_collapse", "max_logit"),
    *(f"max_logit_{part}" for part in PARTS),
)
"""What is kept of single heads; of layers everything is."""


@dataclass(frozen=True)
class ProbeSums:
    """What one run of the probe left: the sums of every site, and those of queries, keys and attention rows."""

    hidden: HiddenSums
    attention: AttentionSums
    output: OutputSums
    protocol: str
    embedding: EmbeddingSums | None = None

    @small_matrices()
    def as_rows(self, *, step: int) -> list[Row]:
        like = Row(step=step, protocol=self.protocol)
        observers = [self.hidden, *([] if self.embedding is None else [self.embedding])]
        sums = {site: moments.sums() for observer in observers for site, moments in observer.parts.items()}
        rows = [
            row_of(estimate, like, site=site, layer=layer)
            for observer in observers
            for site, layer in observer.about()["sites"]
            for sample in (observer.parts[site].sample(),)
            for estimate in (
                *direction_estimates(sums[site]),
                *extreme_estimates(observer.parts[site].extremes, sample, sums[site], sums.get(enters(site))),
                *sampled_spectrum(sample, SPECTRAL),
            )
        ]
        rows += attention_rows(self.attention.heads, self.attention.rows, like=like, of_heads=OF_HEADS)
        return rows + [row for outputs in self.output.parts.values() for row in output_rows(outputs, like)]


class Probe:
    """Inputs that are cut into batches when the first model shows up, and stay the same from then on.

    - `data`: texts, files, clips or pictures (what `inputs.open_source` takes), read by `processor`; or one batch as
      the model takes it (`input_ids`, `attention_mask`, …), whose rows are the sequences.
    - `length` of a window in tokens (default 128, or what the model can read) and `limit` of documents: as of a sweep.
    - `pool`: mean, cls, last, max or weighted: also measure the pooled vector of each text, the site `embedding`.
    """

    def __init__(
        self,
        data: Any,
        processor: Any = None,
        *,
        length: int | None = None,
        limit: int | None = None,
        sites: str | Iterable[str] = "*",
        attention: bool = True,
        logits: bool = True,
        pool: str | None = None,
    ) -> None:
        if processor is None and not isinstance(data, Mapping):
            raise UsageError("texts need their tokenizer, clips and pictures their processor", got=type(data).__name__)
        self.data, self.processor = data, processor
        self.sites = [sites] if isinstance(sites, str) else list(sites)
        self.attention, self.logits, self.length, self.limit, self.pool = attention, logits, length, limit, pool
        if pool is not None and pool not in POOLS:
            raise UsageError("no such way of pooling", got=pool, expected=", ".join(POOLS))
        self.labels = data.get("labels") if isinstance(data, Mapping) else None
        self.source: Source[Any] | None = None
        self.batches: list[Batch] = [as_batch(data)] if isinstance(data, Mapping) else []
        self._protocol: dict[str, str] = {"batches": "one batch, as it was given"} if self.batches else {}

    @property
    def settings(self) -> dict[str, Any]:
        """What a run has to be made with to be comparable; the hash is that of the batches, once they are made."""
        given = {"sites": self.sites, "attention": self.attention, "logits": self.logits}
        given |= {"length": self.length, "limit": self.limit}
        pooled = {} if self.pool is None else {"pool": self.pool}
        return given | pooled | {"probe": self.fingerprint()}

    def fingerprint(self) -> str:
        """sha256 of everything that the model reads."""
        parts: list[bytes] = []
        for batch in self.batches:
            for name, tensor in sorted(batch.inputs.items()):
                flat = tensor.cpu().contiguous().flatten().view(torch.uint8)
                parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), flat.numpy().tobytes()]
        return digest(parts)

    def run(self, model: nn.Module) -> ProbeSums:
        """One pass of the probe through a model in whatever mode it is."""
        module = running_part(model, head=self.logits)
        with at_rest(model):
            if not self.batches:
                self._cut(module)
            return self._pass(module)

    def _cut(self, module: nn.Module) -> None:
        """Make the batches, by the plan of a measurement."""
        opened = open_model(body_of(module)[0], processor=self.processor)
        self.source = open_source(self.data, opened.modality)  # pyright: ignore[reportArgumentType]  # checked there
        length = self.length
        if length is None and opened.modality == "text":
            length = min(LENGTH, opened.limit or LENGTH)
        tokens = batch_positions(module)
        batches = make_batches(opened, self.source, length=length, limit=self.limit, batch_tokens=tokens)
        self.batches, self._protocol = [batch for _, batch in batches], batches.protocol

    def _pass(self, module: nn.Module) -> ProbeSums:
        device = sums_device(str(next(module.parameters()).device))
        options = {"spectrum": False, "sample": SPECTRUM, "device": device}
        hidden = HiddenSums(HiddenCapture(module, sites=self.sites), **options)
        attention, output = AttentionSums(sample=SAMPLE), OutputSums(self.labels)
        observers: dict[str, Any] = {"hidden": hidden} | ({"attention": attention} if self.attention else {})
        if self.logits and output_head(module) is not None and not _is_sharded(module):
            observers["output"] = output
        if self.pool is not None:
            observers["embedding"] = EmbeddingSums(pooling_encoder(self.pool), **options)
        watched = OpenModel(module, self.processor, "", type(module).__name__, None, "", None)
        for place, batch in enumerate(self.batches):
            observe(watched, batch, observers, first=place == 0)
        words = [self._protocol, *(observer.about()["protocol"] for observer in observers.values())]
        protocol = words_of({name: word for part in words for name, word in part.items()})
        return ProbeSums(hidden, attention, output, protocol, observers.get("embedding"))


def running_part(model: nn.Module, *, head: bool = False) -> nn.Module:
    """The part of a model that is run: without what wraps it, and without its head.

    The head stays where its logits are wanted (`head`) or the weights are sharded.
    """
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None
        )
        if inner is None:
            kept = _is_sharded(model) or (head and output_head(model) is not None)
            return model if kept else body_of(model)[0]
        model = inner


def _is_sharded(model: nn.Module) -> bool:
    """Whether each process holds a part of the weights (`fully_shard`)."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) for weight in model.parameters())


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no autocast; then every part is back in its own mode (a frozen one may be in eval)."""
    modes = [(part, part.training) for part in model.modules()]
    device = next(model.parameters()).device.type
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        for part, training in modes:
            part.training = training


def as_batch(given: Mapping[str, Tensor]) -> Batch:
    """A batch that somebody made; every row is a sequence, no position is known to be special."""
    inputs = {name: tensor for name, tensor in given.items() if name != "labels"}
    if not inputs or not len(main := next(iter(inputs.values()))):
        raise InputError("the probe is empty", got=f"{list(given)}")
    keys = [str(row) for row in range(len(main))]
    valid = _mask(inputs.get("attention_mask"), main)
    decoder = inputs.get("decoder_input_ids")
    decoder_valid = None if decoder is None else _mask(inputs.get("decoder_attention_mask"), decoder)
    decoder_special = None if decoder_valid is None else torch.zeros_like(decoder_valid)
    return Batch(inputs, keys, [0] * len(keys), valid, torch.zeros_like(valid), decoder_valid, decoder_special)


def _mask(mask: Tensor | None, main: Tensor) -> Tensor:
    """(B, T) of which positions are real; a picture has one."""
    if mask is not None:
        return mask.bool()
    return torch.ones(main.shape[0], main.shape[1] if main.dim() == 2 else 1, dtype=torch.bool)
