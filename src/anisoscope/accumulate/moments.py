"""The moments of a cloud: every statistic that is a sum over its vectors, kept in one pass.

For vectors x with unit vectors u = x/‖x‖, per jackknife group g (a hash of the sequence's key):

    n_g, Σx, Σu, Σ‖x‖, Σ‖x‖², and over the sequences s of the group: Σ_s ‖Σ_{i∈s} u_i‖², Σ_s n_s²

and over the whole cloud Σ u∘u and the raw second moment Σ xxᵀ. Sums add, so chunks, shards and processes merge in any
order; subtracting one group's sums gives the jackknife. First positions are kept apart (`first`) from the others
(`rest`); `all` is their sum. What is no sum (neighbours, quantiles) comes from the reservoir.

Precision: unit sums are float64 throughout. The second moment is a float32 Gram matrix of each chunk about the chunk's
own mean, plus float64 rank-one terms that move it back to the origin: with y = x − μ and r = Σx − bμ,

    Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + bμμᵀ,

which keeps the covariance right where the drift is 10⁴ times the spread. Memory O(d² + 32·d), constant in n; time
O(n·d²) with the spectrum (a symmetric rank-k update), O(n·d) without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.reservoir import CAPACITY, Reservoir
from anisoscope.accumulate.sums import Sums, sums_of
from anisoscope.errors import InputError, UsageError

LARGEST_SPECTRUM = 4096  # above this d, a d×d matrix is not built: the spectrum comes from the reservoir
_HUGE = 65_536  # above this d (flattened maps), fewer jackknife groups, so that the group sums stay in memory
_BLOCK = 512  # rows in float64 at a time: they stay in the cache
_GRAM_BLOCK = 8192  # a multiple of _BLOCK
_PANEL = 256
_OPEN_BYTES = 64 * 2**20
_FLOAT32_SAFE = (1e-12, 1e15)  # norms whose squares, summed over a block, neither vanish nor overflow in float32
PARTS = ("rest", "first")


class _OpenSequence:
    """The unit sums of a sequence that may still go on: one row for `rest`, one for `first`."""

    __slots__ = ("arrived", "counts", "sums")

    def __init__(self, d: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.sums = torch.zeros(2, d, dtype=torch.float64, device=device)
        self.counts = np.zeros(2, dtype=np.int64)
        self.arrived = 0


class Moments:
    """Additive statistics of a cloud in R^d.

    `update` takes chunks of vectors; a sequence may arrive in several chunks, also mixed with others, as long as no
    more than `open_limit` sequences are unfinished at a time (older ones are closed; a piece that comes after is
    refused). `merge` adds another Moments; a sequence may be split between the two while both still hold it open.

    >>> moments = Moments(3, spectrum=True)
    >>> moments.update(torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 0]]))
    >>> sums = moments.sums()
    >>> sums.n, sums.zero, sums.sum_unit.tolist()
    (2, 1, [1.0, 1.0, 0.0])
    """

    def __init__(
        self,
        d: int,
        *,
        spectrum: bool = True,
        groups: int | None = None,
        reservoir: int = CAPACITY,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if d < 1:
            raise UsageError("a cloud needs at least one dimension", got=f"d = {d}")
        self.d, self.seed = d, seed
        self.spectrum = spectrum and d <= LARGEST_SPECTRUM
        self.groups = groups if groups is not None else (GROUPS if d <= _HUGE else GROUPS // 4)
        self.device = torch.device(device)
        self.open_limit = max(64, min(4096, _OPEN_BYTES // (16 * d)))
        self.reservoir = Reservoir(d, capacity=reservoir, seed=seed)
        self._sums: dict[str, torch.Tensor] = {}
        for part in PARTS:
            self._sums |= {f"{part}.{name}": tensor for name, tensor in self._empty_part().items()}
        for name in ("energy", "pairs", "sequences"):
            self._sums[f"cross.{name}"] = self._zeros(self.groups)
        self._open: OrderedDict[int, _OpenSequence] = OrderedDict()
        self._closed: set[int] = set()
        self._unnamed = 0  # rows that came without a sequence

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        with torch.inference_mode(False):  # a capture may make them in inference mode; they are added to after it
            return torch.zeros(*shape, dtype=dtype, device=self.device)

    def _empty_part(self) -> dict[str, torch.Tensor]:
        g, d = self.groups, self.d
        part = {"unit2": self._zeros(d), "x": self._zeros(g, d), "unit": self._zeros(g, d)}
        part |= {name: self._zeros(g) for name in ("norm", "norm2", "energy", "pairs", "sequences")}
        part |= {"n": self._zeros(g, dtype=torch.int64)}
        part |= {name: self._zeros(1, dtype=torch.int64) for name in ("zero", "nonfinite")}
        return part | ({"second": self._zeros(d, d)} if self.spectrum else {})

    # -- taking vectors in -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(
        self,
        x: torch.Tensor,
        *,
        sequences: Keys | None = None,
        positions: NDArray[np.int64] | None = None,
        first: NDArray[np.bool_] | None = None,
        whole: bool = False,
    ) -> None:
        """Add the vectors x (n, d).

        - `sequences`: the key of each row's sequence; without it every row is a sequence of its own, known by its
          number, so that two such Moments cannot be merged.
        - `positions`: each row's place in its sequence (default: order of arrival); decides the reservoir's choice.
        - `first`: which rows are first positions.
        - `whole`: every sequence of this chunk is complete in it, so none is kept open.
        """
        x = self._checked(x, sequences, positions, first)
        n = len(x)
        if sequences is None:
            sequences, whole = np.arange(self._unnamed, self._unnamed + n, dtype=np.uint64), True
            positions = np.zeros(n, dtype=np.int64) if positions is None else positions
            self._unnamed += n
        sequences = np.asarray(sequences, dtype=np.uint64)
        if self._closed and not self._closed.isdisjoint(np.unique(sequences).tolist()):
            raise _arrived_after_closing(self.open_limit)
        if positions is None:
            positions = self._arrivals(sequences, whole=whole)
        first = np.zeros(n, dtype=bool) if first is None else np.asarray(first, dtype=bool)
        norms = self._norms(x)
        good = self._count_bad(norms, first)
        if not good.all():
            kept = torch.from_numpy(good).to(x.device)
            x, norms = x[kept], norms[kept]
            sequences, positions, first = sequences[good], positions[good], first[good]
        if not len(x):
            return
        self.reservoir.offer(x, sequences, positions, first)
        block_sums = self._add_directions(x, norms, sequences, first, whole=whole)
        if self.spectrum:
            self._add_second_moment(x, norms, first, block_sums)

    def _checked(self, x: torch.Tensor, *per_row: NDArray | None) -> torch.Tensor:
        if x.ndim != 2 or x.shape[1] != self.d:
            raise UsageError("vectors of the wrong shape", got=tuple(x.shape), expected=f"(n, {self.d})")
        for column in per_row:
            if column is not None and len(column) != len(x):
                raise UsageError("one label a vector is needed", got=f"{len(column)} labels", expected=len(x))
        x = x.detach()
        x = x if x.dtype == torch.float64 else x.float()
        return x.to(self.device)

    def _arrivals(self, sequences: Keys, *, whole: bool) -> NDArray[np.int64]:
        """Order of arrival within each sequence, going on from what an open sequence has already seen."""
        positions = np.empty(len(sequences), dtype=np.int64)
        order = np.argsort(sequences, kind="stable")
        keys, starts, counts = np.unique(sequences[order], return_index=True, return_counts=True)
        positions[order] = np.arange(len(sequences)) - np.repeat(starts, counts)
        if not whole:
            pieces = [self._open.setdefault(key, _OpenSequence(self.d, self.device)) for key in keys.tolist()]
            positions[order] += np.repeat(np.array([piece.arrived for piece in pieces], dtype=np.int64), counts)
            for piece, count in zip(pieces, counts.tolist(), strict=True):
                piece.arrived += count  # also what is left out later: a place in the sequence stays a place
        return positions

    def _norms(self, x: torch.Tensor) -> torch.Tensor:
        norms = torch.empty(len(x), dtype=torch.float64, device=x.device)
        room = self._zeros(min(_BLOCK, len(x)), self.d)
        for start in range(0, len(x), _BLOCK):
            block = room[: len(x) - start].copy_(x[start : start + _BLOCK])
            torch.linalg.vector_norm(block, dim=1, out=norms[start : start + _BLOCK])
        return norms

    def _count_bad(self, norms: torch.Tensor, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count and mark the rows that have no direction: zero vectors, and vectors that are not finite."""
        values = norms.cpu().numpy()
        finite, zero = np.isfinite(values), values == 0
        for part, chosen in (("rest", ~first), ("first", first)):
            self._sums[f"{part}.nonfinite"] += int((~finite & chosen).sum())
            self._sums[f"{part}.zero"] += int((zero & chosen).sum())
        return finite & ~zero

    def _add_directions(
        self, x: torch.Tensor, norms: torch.Tensor, sequences: Keys, first: NDArray[np.bool_], *, whole: bool
    ) -> torch.Tensor:
        """Add everything but the second moment; Σx of each block of rows and part, (blocks, 2, d)."""
        keys, sequence_of = _distinct(sequences)
        singletons = whole and len(keys) == len(x)
        groups = group_of(keys, groups=self.groups)  # (S,)
        bin_of, bins = (groups[sequence_of], self.groups) if singletons else (sequence_of, len(keys))
        n, norm, norm2, sum_x, sum_unit, block_sums = self._binned(x, norms, 2 * bin_of + first, 2 * bins, first)
        target = torch.from_numpy(np.arange(self.groups) if singletons else groups).to(self.device)
        for p, part in enumerate(PARTS):
            for name, values in (("n", n), ("norm", norm), ("norm2", norm2), ("x", sum_x), ("unit", sum_unit)):
                self._sums[f"{part}.{name}"].index_add_(0, target, values[p::2].to(self._sums[f"{part}.{name}"].dtype))
            if singletons:  # ‖u‖² = 1, and one vector makes n_s² = 1
                for name in ("energy", "pairs", "sequences"):
                    self._sums[f"{part}.{name}"].index_add_(0, target, n[p::2])
        if singletons:
            self._sums["cross.sequences"].index_add_(0, target, n[0::2] + n[1::2])
        else:
            self._add_to_sequences(keys, sum_unit, n.cpu().numpy().astype(np.int64), whole=whole)
        return block_sums

    def _binned(
        self, x: torch.Tensor, norms: torch.Tensor, bins: NDArray[np.int64], count: int, first: NDArray[np.bool_]
    ) -> tuple[torch.Tensor, ...]:
        """Σ1, Σ‖x‖, Σ‖x‖², Σx and Σu over the rows of each bin, in float64; also adds Σu∘u of both parts.

        Odd bins hold first positions. Last comes Σx of every `_GRAM_BLOCK` rows by part, which the second moment needs.
        """
        where = torch.from_numpy(bins).to(x.device)
        totals = self._zeros(3, count)
        totals.index_add_(1, where, torch.stack([torch.ones_like(norms), norms, norms * norms]))
        sum_x, sum_unit, squares = self._zeros(count, self.d), self._zeros(count, self.d), self._zeros(2, self.d)
        block_sums = self._zeros(-(-len(x) // _GRAM_BLOCK), 2, self.d)
        room = self._zeros(2, min(_BLOCK, len(x)), self.d)  # the same memory for every block: it stays in the cache
        for start in range(0, len(x), _BLOCK):
            rows = slice(start, start + _BLOCK)
            block, units = room[:, : len(x[rows])]  # (b, d) each
            block.copy_(x[rows])
            sum_x.index_add_(0, where[rows], block)
            torch.div(block, norms[rows, None], out=units)
            sum_unit.index_add_(0, where[rows], units)
            total, apart = block_sums[start // _GRAM_BLOCK], np.flatnonzero(first[rows])
            if self.spectrum:
                total[0] += block.sum(0)
            if len(apart):
                at = torch.from_numpy(apart).to(x.device)
                firsts, first_units = block[at].sum(0), units[at]
                total += torch.stack([-firsts, firsts])
                squares[1] += first_units.square_().sum(0)
                units[at] = 0.0
            squares[0] += units.square_().sum(0)
        for part, square in zip(PARTS, squares, strict=True):
            self._sums[f"{part}.unit2"] += square
        return *totals, sum_x, sum_unit, block_sums

    def _add_second_moment(
        self, x: torch.Tensor, norms: torch.Tensor, first: NDArray[np.bool_], block_sums: torch.Tensor
    ) -> None:
        if not _FLOAT32_SAFE[0] < float(norms.max()) < _FLOAT32_SAFE[1]:
            x = x.double()
        for number, sums in enumerate(block_sums):
            rows = slice(number * _GRAM_BLOCK, (number + 1) * _GRAM_BLOCK)
            for p, (part, chosen) in enumerate((("rest", ~first[rows]), ("first", first[rows]))):
                if not chosen.any():
                    continue
                block = x[rows] if chosen.all() else x[rows][torch.from_numpy(chosen).to(x.device)]
                n, second = len(block), self._sums[f"{part}.second"]
                mean = (sums[p] / n).to(x.dtype)
                shift = mean.double()
                half = sums[p] - 0.5 * n * shift  # rμᵀ + μrᵀ + bμμᵀ = (r + bμ/2)μᵀ + μ(r + bμ/2)ᵀ, with r = Σx − bμ
                second += _gram(block - mean)
                second.addmm_(torch.stack([half, shift], 1), torch.stack([shift, half]))

    # -- sequences ---------------------------------------------------------------------------------------------------

    def _add_to_sequences(self, keys: Keys, sum_unit: torch.Tensor, counts: NDArray[np.int64], *, whole: bool) -> None:
        names = keys.tolist()
        for i, key in enumerate(names):
            piece = self._open.get(key) or _OpenSequence(self.d, self.device)
            piece.sums += sum_unit[2 * i : 2 * i + 2]
            piece.counts += counts[2 * i : 2 * i + 2]
            self._open[key] = piece
            self._open.move_to_end(key)
        self._close(names if whole else self._too_many_open())

    def _too_many_open(self) -> list[int]:
        return list(islice(self._open, max(0, len(self._open) - self.open_limit)))

    def _close(self, keys: list[int]) -> None:
        self._add_energies(self._sums, {key: self._open.pop(key) for key in keys})
        self._closed.update(keys)

    def _add_energies(self, sums: dict[str, torch.Tensor], pieces: Mapping[int, _OpenSequence]) -> None:
        """Add ‖Σ_seq u‖² and n_seq² of these sequences, for both parts and for what joins them."""
        everything = iter(pieces.items())
        while some := list(islice(everything, _BLOCK)):
            keys = np.array([key for key, _ in some], dtype=np.uint64)
            group = torch.from_numpy(group_of(keys, groups=self.groups)).to(self.device)
            unit = torch.stack([piece.sums for _, piece in some])  # (S, 2, d)
            n = torch.from_numpy(np.stack([piece.counts for _, piece in some])).to(self.device).double()  # (S, 2)
            gram = unit @ unit.mT  # (S, 2, 2)
            for p, part in enumerate(PARTS):
                sums[f"{part}.energy"].index_add_(0, group, gram[:, p, p])
                sums[f"{part}.pairs"].index_add_(0, group, n[:, p].square())
                sums[f"{part}.sequences"].index_add_(0, group, (n[:, p] > 0).double())
            sums["cross.energy"].index_add_(0, group, 2 * gram[:, 0, 1])
            sums["cross.pairs"].index_add_(0, group, 2 * n[:, 0] * n[:, 1])
            sums["cross.sequences"].index_add_(0, group, (n.sum(1) > 0).double())

    # -- reading, merging, storing -----------------------------------------------------------------------------------

    def sums(self, positions: str = "all") -> Sums:
        """The sums as numpy arrays, over `all` positions, the `rest` or the `first`."""
        names = {f"{part}.{name}" for part in PARTS for name in ("energy", "pairs", "sequences")}
        names |= {"cross.energy", "cross.pairs", "cross.sequences"}
        closed = self._sums | {name: self._sums[name].clone() for name in names}
        self._add_energies(closed, self._open)
        return sums_of({name: tensor.cpu().numpy() for name, tensor in closed.items()}, positions)

    def merge(self, other: Moments) -> None:
        """Add what another Moments saw; refuses one of another kind, and sequences that were closed in two places."""
        mine, theirs = (
            (m.d, m.groups, m.spectrum, m.seed, m.reservoir.capacity, m.reservoir.seed) for m in (self, other)
        )
        if mine != theirs:
            names = "d, groups, spectrum, seed, capacity and seed of the reservoir"
            raise UsageError(f"cannot merge moments of different kinds ({names})", got=theirs, expected=mine)
        if self._unnamed and other._unnamed:
            raise UsageError(
                "cannot merge moments whose vectors have no sequences: both count them from 0",
                do="give `sequences`, a key of its own to every row, to the updates of all shards",
            )
        seen = self._closed | self._open.keys()
        if (other._closed & seen) or (self._closed & other._open.keys()):
            raise _arrived_after_closing(self.open_limit)
        for name, tensor in self._sums.items():
            tensor += other._sums[name].to(self.device)
        for key, theirs_open in other._open.items():
            piece = self._open.setdefault(key, _OpenSequence(self.d, self.device))
            piece.sums += theirs_open.sums.to(self.device)
            piece.counts += theirs_open.counts
            piece.arrived += theirs_open.arrived
        self._closed |= other._closed
        self._unnamed += other._unnamed
        self._close(self._too_many_open())
        self.reservoir.merge(other.reservoir)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything, as a flat dict of tensors that safetensors stores."""
        pieces = list(self._open.values())
        none = torch.zeros(0, 2, self.d, dtype=torch.float64)
        counts = [[*map(int, piece.counts), piece.arrived] for piece in pieces]
        return {
            **{name: tensor.cpu().clone() for name, tensor in self._sums.items() if not self._nothing(name)},
            **{f"reservoir.{name}": tensor for name, tensor in self.reservoir.state().items()},
            "open.keys": _int64(self._open.keys()),
            "open.sums": torch.stack([piece.sums.cpu() for piece in pieces]) if pieces else none,
            "open.counts": torch.tensor(counts, dtype=torch.int64).reshape(-1, 3),
            "closed.keys": _int64(sorted(self._closed)),
            "meta": torch.tensor([self.d, self.groups, int(self.spectrum), self.seed, self._unnamed]),
        }

    def _nothing(self, name: str) -> bool:
        """A second moment of no vectors need not be stored."""
        return name.endswith(".second") and not int(self._sums[name.replace(".second", ".n")].sum())

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor], *, device: torch.device | str = "cpu") -> Moments:
        """The inverse of `state`."""
        d, groups, spectrum, seed, unnamed = (int(value) for value in state["meta"])
        moments = cls(d, spectrum=bool(spectrum), groups=groups, seed=seed, device=device)
        for name in moments._sums.keys() & state.keys():
            moments._sums[name] = state[name].to(device).clone()
        sample = {name.removeprefix("reservoir."): t for name, t in state.items() if name.startswith("reservoir.")}
        moments.reservoir = Reservoir.from_state(sample)
        keys = state["open.keys"].numpy().view(np.uint64)
        for key, sums, counts in zip(keys, state["open.sums"], state["open.counts"].numpy(), strict=True):
            piece = moments._open[int(key)] = _OpenSequence(d, moments.device)
            piece.sums += sums.to(device)
            piece.counts += counts[:2]
            piece.arrived = int(counts[2])
        moments._closed = {int(key) for key in state["closed.keys"].numpy().view(np.uint64)}
        moments._unnamed = unnamed
        return moments


def _distinct(sequences: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """`np.unique` with its inverse, without sorting what is sorted and distinct already."""
    if bool(np.all(sequences[1:] > sequences[:-1])):
        return sequences, np.arange(len(sequences))
    return np.unique(sequences, return_inverse=True)


def _gram(y: torch.Tensor) -> torch.Tensor:
    """yᵀy in float64, by panels of one triangle: what is symmetric is computed once."""
    d = y.shape[1]
    gram = torch.empty(d, d, dtype=y.dtype, device=y.device)
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        panel = y[:, start:stop].T @ y[:, :stop]
        gram[start:stop, :stop] = panel
        gram[:start, start:stop] = panel[:, :start].T
    return gram.double()


def _int64(keys) -> torch.Tensor:  # safetensors has no uint64 that torch can add; the bits are kept
    return torch.from_numpy(np.array(list(keys), dtype=np.uint64).view(np.int64).copy())


def _arrived_after_closing(limit: int) -> InputError:
    return InputError(
        "a sequence arrived in pieces too far apart",
        got="a piece of a sequence that was already closed",
        expected=f"the pieces of a sequence within {limit} sequences of each other, and in one shard",
        do="sort the rows by sequence (group), or give each shard whole sequences",
    )
