"""Attention rows of one layer, per head: how sharp they are, what they look at, and what their scores vary by.

A **row** is one query's distribution over the m keys that it sees. Rows of padding do not count; rows that see a single
key have nothing to choose, and are left out and counted. Over the others, per jackknife group:

| sum of | is |
|---|---|
| `entropy`, `entropy_normalised` | −Σ p log p in nats, and the same over log m |
| `max`, `median`, `min` | of the row's probabilities (the median of an even number is the mean of the middle two) |
| `sink`, `self` | probability of the first key of the sequence, and of the query's own position |
| `score`, `score_square` | mean and mean square, within the row, of the content scores q·k·scaling |
| `within` | variance, within the row, of the content scores |
| `collapsed`, `one_key` | 1 for rows with entropy below a tenth of log m, and with a probability above 0.99 |
| `output` | cosine of what the head puts out with the value of the query's own position (self-attention) |
| `log_visible`, `inverse_visible` | log m and 1/m: what uniform attention would give |

and over sequences (windows, where attention is windowed): `sequence_max`, `sequence_min`, the extremes over all rows;
`alpha`, Gu et al.'s importance of the first key, its mean probability over all T rows from the first on; `sinks`,
whether alpha > 0.3 (their Sink_ε is the mean of it over sequences, heads and layers; it depends on T, so
`sink_length`/`sink_sequences` says T). Windowed attention has no first key, so no sinks.

For the split of the score variance into salience and content (`geometry.queries_keys.split_variance`): `query` = Σ q_i,
`spread` = Σ C_i with C_i the covariance of the keys that row i sees, `spread_query` = Σ C_i q_i (see `spread.py`).
`spread` belongs to key heads and is the one large sum, so it is kept for 8 coarser groups (group modulo 8).

Over keys: `value`, the norm of their value. Values are known where attention goes through the library's interface.

Not grouped: the histogram of content scores (`score_bins`), the greatest of them (`peaks`).
Memory O(heads · d_head²), constant in the corpus.
Sources: entropy and extremes, Godey et al., EACL 2024; sinks, Gu et al., ICLR 2025 (`eval_sink_open_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.heads import by_row, cached_blocks, zeros
from anisoscope.accumulate.attention.peaks import Peaks
from anisoscope.accumulate.attention.score_bins import BINS, fold_cells
from anisoscope.accumulate.attention.tiles import CallRows, Scored, read_rows
from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.reservoir import under
from anisoscope.errors import StoreError

SINK = 0.3
_LEAST = 1e-8  # a shorter vector has no direction: its cosine is about 0
SPREAD_GROUPS = 8
_ALWAYS = ("entropy", "entropy_normalised", "max", "median", "min", "score", "score_square", "within")
_ALWAYS += ("collapsed", "one_key")
OF_ROWS = (*_ALWAYS, "sink", "self", "output")
OF_SEQUENCES = ("sequence_max", "sequence_min", "alpha", "sinks")
OF_LENGTHS = ("log_visible", "inverse_visible")
COUNTS = ("rows", "one_key_rows", "self_rows", "sink_rows", "sequences", "sink_sequences", "sink_length")
COUNTS += ("output_rows", "values")


class Windowed(Scored, Protocol):
    @property
    def windowed(self) -> bool: ...
    @property
    def values(self) -> Tensor | None: ...  # (B, key heads, Tk, d_value)
    def context(self) -> Tensor: ...  # (B, Tq, heads, d_value)


class Rows:
    """The attention rows of one layer. `sums[name]`: (g, heads) of rows and sequences, (g,) of counts and lengths."""

    def __init__(self, *, query_heads: int, key_heads: int, d: int, groups: int = GROUPS) -> None:
        self.groups, self.heads = groups, query_heads
        self.sums = {name: zeros(groups, query_heads) for name in (*OF_ROWS, *OF_SEQUENCES)}
        self.sums |= {name: zeros(groups) for name in OF_LENGTHS}
        self.sums |= {name: zeros(groups, dtype=torch.int64) for name in COUNTS}
        self.sums |= {
            "query": zeros(groups, query_heads, d),
            "spread": zeros(SPREAD_GROUPS, key_heads, d, d),
            "spread_query": zeros(SPREAD_GROUPS, query_heads, d),
            "histogram": zeros(query_heads, BINS, dtype=torch.int64),
            "value": zeros(groups, key_heads),
        }
        self.peaks = Peaks(query_heads=query_heads, key_heads=key_heads, d=d)

    @classmethod
    def like(cls, call: Scored) -> Self:
        """Empty sums for calls of this shape."""
        _, heads, _, d = call.score_queries.shape
        return cls(query_heads=heads, key_heads=call.score_keys.shape[1], d=d)

    def update(self, call: Windowed, sequences: Keys, starts: NDArray[np.int64] | None = None) -> None:
        """Add one call. `sequences` (B,): the key of each sequence; `starts` (B,): where in it the window starts."""
        keys, window = by_row(sequences, len(call.score_queries))
        group = torch.from_numpy(group_of(keys, groups=self.groups))
        rows = read_rows(call)
        valid, counted = call.valid_queries, rows.counted
        self._add("rows", group, counted.sum(1))
        self._add("one_key_rows", group, (valid & (rows.seen == 1)).sum(1))
        seen = rows.seen.double()
        self._add("log_visible", group, seen.log().masked_fill(~counted, 0.0).sum(1))
        self._add("inverse_visible", group, (1 / seen).masked_fill(~counted, 0.0).sum(1))
        for name in _ALWAYS:
            self._add(name, group, _sum(rows.values[name], counted))
        if "self" in rows.values:
            self._add("self", group, _sum(rows.values["self"], counted))
            self._add("self_rows", group, counted.sum(1))
        self._add_sequences(rows, group)
        if not (call.windowed or window.any()):
            self._add_sinks(rows, valid, group)
        self._add("query", group, rows.query)
        self._add("spread", group % SPREAD_GROUPS, rows.spread)
        self._add("spread_query", group % SPREAD_GROUPS, rows.spread_query)
        self.sums["histogram"] += fold_cells(rows.cells)
        starts = np.zeros(len(sequences), dtype=np.int64) if starts is None else starts
        self.peaks.update(call, rows.values["peak"], rows.seen, sequences, starts)
        if call.values is not None:
            self._add_values(call, call.values, counted, group)

    def _add_values(self, call: Windowed, values: Tensor, counted: Tensor, group: Tensor) -> None:
        own = call.kind == "self" and values.shape[2] == counted.shape[1]
        norms, cosines = [], []
        for block in cached_blocks(values):
            exact = values[block].double()  # (b, key heads, Tk, d)
            norms.append(torch.linalg.vector_norm(exact, dim=-1))
            if own:
                cosines.append(_cosines(call.context()[block], exact, norms[-1]))
        self._add("value", group, _sum(torch.cat(norms), call.valid_keys))
        self._add("values", group, call.valid_keys.sum(1))
        if own:
            self._add("output", group, _sum(torch.cat(cosines), counted))
            self._add("output_rows", group, counted.sum(1))

    def _add_sequences(self, rows: CallRows, group: Tensor) -> None:
        some = rows.counted.any(1)
        outside = ~rows.counted.unsqueeze(1)
        greatest = rows.values["max"].double().masked_fill(outside, -torch.inf).amax(-1)
        least = rows.values["min"].double().masked_fill(outside, torch.inf).amin(-1)
        self._add("sequence_max", group, greatest.masked_fill(~some[:, None], 0.0))
        self._add("sequence_min", group, least.masked_fill(~some[:, None], 0.0))
        self._add("sequences", group, some.long())

    def _add_sinks(self, rows: CallRows, valid: Tensor, group: Tensor) -> None:
        sink, length = rows.values["sink"], valid.sum(1)
        alpha = _sum(sink, valid) / length.clamp(min=1)[:, None]  # (B, heads): 0 for a row without positions
        self._add("sink", group, _sum(sink, rows.counted))
        self._add("sink_rows", group, rows.counted.sum(1))
        self._add("alpha", group, alpha)
        self._add("sinks", group, (alpha > SINK).double())
        self._add("sink_sequences", group, (length > 0).long())
        self._add("sink_length", group, length)

    def _add(self, name: str, group: Tensor, by_sequence: Tensor) -> None:
        self.sums[name].index_add_(0, group, by_sequence.cpu().to(self.sums[name].dtype))

    def merge(self, other: Rows) -> None:
        for name, mine in self.sums.items():
            theirs = other.sums[name]
            if mine.shape != theirs.shape:
                raise StoreError(
                    "cannot add the sums of other heads",
                    where=name,
                    got=tuple(theirs.shape),
                    expected=tuple(mine.shape),
                )
            mine += theirs
        self.peaks.merge(other.peaks)

    def state(self) -> dict[str, NDArray]:
        kept = {name: tensor.numpy() for name, tensor in self.sums.items()}
        return kept | {f"peak.{name}": array for name, array in self.peaks.state().items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        groups, heads, d = state["query"].shape
        rows = cls(query_heads=heads, key_heads=state["spread"].shape[1], d=d, groups=groups)
        rows.sums = {
            name: empty.copy_(torch.as_tensor(state[name])) for name, empty in rows.sums.items() if name in state
        }
        peaks = dict(under("peak.", state))
        rows.peaks = Peaks.from_state(peaks) if peaks else rows.peaks  # earlier versions kept fewer sums
        return rows


def _cosines(out: Tensor, own: Tensor, norm: Tensor) -> Tensor:
    """Of the outputs (b, T, heads, d) with the own values (b, key heads, T, d) of these norms: (b, heads, T)."""
    exact = out.transpose(1, 2).double()
    group = exact.shape[1] // own.shape[1]
    dot = (exact.unflatten(1, (-1, group)) * own.unsqueeze(2)).sum(-1).flatten(1, 2)
    norms = torch.linalg.vector_norm(exact, dim=-1), norm.repeat_interleave(group, 1)
    return dot / (norms[0].clamp(min=_LEAST) * norms[1].clamp(min=_LEAST))


def _sum(values: Tensor, kept: Tensor) -> Tensor:
    """Sum of values (B, heads, Tq) over the rows that are kept (B, Tq)."""
    return values.double().masked_fill(~kept.unsqueeze(1), 0.0).sum(-1)
