"""The moments of a cloud: every statistic that is a sum over its vectors, kept in one pass.

For vectors x with unit vectors u = x/‖x‖, per jackknife group g (a hash of the sequence's key):

    n_g, Σx, Σu, Σ‖x‖, Σ‖x‖², ΣΣ_k x_k⁴, and over the sequences s of the group: Σ_s ‖Σ_{i∈s} u_i‖², Σ_s n_s²

and over the whole cloud Σ u∘u and the raw second moment Σ xxᵀ (above d = 4,096 its `sketch`, and Σ x∘x). Sums add, so
chunks, shards and processes merge in any order; subtracting one group's sums gives the jackknife. First positions are
kept apart (`first`) from the others (`rest`); `all` is their sum. Statistics that need whole vectors (neighbours,
quantiles) come from the reservoir; with `maxima`, the largest entry of each dimension is kept too (`maxima.Extremes`).

Precision: unit sums are float64 throughout. The second moment is a float32 Gram matrix of each chunk about the chunk's
own mean, plus float64 rank-one terms that move it back to the origin: with y = x − μ and r = Σx − bμ,

    Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + bμμᵀ,

which keeps the covariance right where the drift is 10⁴ times the spread. Norms of float64 vectors are right at any
scale; sums of squares that leave the range of float64 (norms beyond 1e±140) are missing when they are read (`sums`).

Memory O(d² + 32·d), constant in the number of vectors and of sequences: besides the sums there are at most `open_bytes`
of unfinished sequences and the keys of the last 16,384 finished ones. Time O(n·d²) with the spectrum (a symmetric
rank-k update), O(n·d) without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.attention.heads import under
from anisoscope.accumulate.binned import GRAM_BLOCK, Binned, binned, zeros
from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.maxima import Extremes
from anisoscope.accumulate.products import NARROW, add_products
from anisoscope.accumulate.reservoir import CAPACITY, Reservoir
from anisoscope.accumulate.sequences import Finished, Sequences
from anisoscope.accumulate.sketch import COLUMNS, projection
from anisoscope.accumulate.sums import LONG, Sample, Sums, sums_of
from anisoscope.accumulate.threads import shared_out
from anisoscope.errors import UsageError

LARGEST_SPECTRUM = 4096  # above this d, a d×d matrix is not built: the spectrum comes from a sketch
_HUGE = 65_536  # above this d (flattened maps) no sketch either, and fewer jackknife groups: sums stay in memory
_FEW = 64  # rows that are cheaper in float64 than about their mean
OPEN_BYTES = 16 * 2**20
_FEWEST_OPEN = 256  # windows of a text come sorted by length within 128 of them: pieces lie at most 256 apart
_FLOAT32_SAFE = (1e-12, 1e15)  # norms whose squares, summed over a block, neither vanish nor overflow in float32
PARTS = ("rest", "first")
OTHER = {"rest": "first", "first": "rest"}


class Moments:
    """Additive statistics of a cloud in R^d.

    `update` takes chunks of vectors; a sequence may arrive in several chunks, also mixed with others, as long as no
    more than `open_limit` sequences, `open_bytes` of sums, are unfinished at a time: older ones are closed. A piece
    that comes after closing is refused while its sequence is among the last 16,384 that were closed; later it would
    count as a sequence of its own. `merge` adds another Moments; a sequence may be split between the two while both
    still hold it open. `seal` closes whatever is open, once everything has been seen.

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
        open_bytes: int = OPEN_BYTES,
        maxima: bool = False,
    ) -> None:
        if d < 1:
            raise UsageError("a cloud needs at least one dimension", got=f"d = {d}")
        self.d, self.seed = d, seed
        self.spectrum = spectrum and d <= LARGEST_SPECTRUM
        self.sketched = spectrum and LARGEST_SPECTRUM < d <= _HUGE
        self.groups = groups if groups is not None else (GROUPS if d <= _HUGE else GROUPS // 4)
        self.device = torch.device(device)
        limit = max(_FEWEST_OPEN if d <= _HUGE else 16, open_bytes // (16 * d))
        self._sequences = Sequences(d, limit=limit, device=self.device)
        self.reservoir = Reservoir(d, capacity=reservoir, seed=seed)
        self.extremes = Extremes(d) if maxima else None
        self._sums: dict[str, torch.Tensor] = {}
        for part in PARTS:
            self._sums |= {f"{part}.{name}": tensor for name, tensor in self._empty_part().items()}
        for name in ("energy", "pairs", "sequences"):
            self._sums[f"cross.{name}"] = self._zeros(self.groups)

    @property
    def open_limit(self) -> int:
        """How many sequences may be unfinished at a time."""
        return self._sequences.limit

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return zeros(*shape, dtype=dtype, device=self.device)

    def _empty_part(self) -> dict[str, torch.Tensor]:
        g, d = self.groups, self.d
        part = {"unit2": self._zeros(d), "x": self._zeros(g, d), "unit": self._zeros(g, d)}
        part |= {name: self._zeros(g) for name in ("norm", "norm2", "fourth", "energy", "pairs", "sequences")}
        part |= {"n": self._zeros(g, dtype=torch.int64)}
        part |= {name: self._zeros(1, dtype=torch.int64) for name in ("zero", "nonfinite", "single")}
        if self.sketched:
            part |= {"sketch": self._zeros(d, COLUMNS), "square": self._zeros(d)}
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
        start: int | None = None,
    ) -> None:
        """Add the vectors x (n, d).

        - `sequences`: the key of each row's sequence; without it every row is a sequence of its own, known by its
          number.
        - `start`: the number of the first row, counted over all shards (default: one after the last that came here).
          Moments of numbered rows merge where their numbers differ.
        - `positions`: each row's place in its sequence (default: order of arrival); decides the reservoir's choice.
        - `first`: which rows are first positions.
        - `whole`: every sequence of this chunk is complete in it, so none is kept open.
        """
        x = self._checked(x, sequences, positions, first)
        n = len(x)
        if sequences is None:
            sequences, whole = self._sequences.number(n, start), True
            positions = np.zeros(n, dtype=np.int64) if positions is None else positions
        sequences = np.asarray(sequences, dtype=np.uint64)
        self._sequences.check(sequences)
        if positions is None:
            positions = self._sequences.arrivals(sequences, whole=whole)
        first = np.zeros(n, dtype=bool) if first is None else np.asarray(first, dtype=bool)
        with shared_out() if self.d <= NARROW else nullcontext():  # a product of wide vectors keeps a team busy
            self._add(x, sequences, positions, first, whole=whole)

    def _add(
        self, x: torch.Tensor, sequences: Keys, positions: NDArray[np.int64], first: NDArray[np.bool_], *, whole: bool
    ) -> None:
        if not len(x):
            return
        keys, sequence_of = _distinct(sequences)
        groups = group_of(keys, groups=self.groups)  # (S,)
        singletons = whole and len(keys) == len(x)
        bin_of, bins = (groups[sequence_of], self.groups) if singletons else (sequence_of, len(keys))
        found, totals, norms = binned(x, 2 * bin_of + first, 2 * bins, gram=self.spectrum or self.sketched)
        good = self._good(norms, first)
        if not good.all():
            kept = torch.from_numpy(good).to(x.device)
            self._add(x[kept], sequences[good], positions[good], first[good], whole=whole)
            return
        self.reservoir.offer(x, sequences, positions, first)
        if self.extremes is not None:
            self.extremes.update(x, sequences, positions)
        self._add_directions(found, totals, None if singletons else keys, groups, whole=whole)
        if self.spectrum or self.sketched:
            self._add_second_moment(x, norms, first, found.blocks)

    def arrivals(self, sequences: Keys | None, n: int) -> NDArray[np.int64]:
        """The places that `update` would give n rows of these sequences; counts them, so give them to it."""
        return np.zeros(n, dtype=np.int64) if sequences is None else self._sequences.arrivals(sequences, whole=False)

    def _checked(self, x: torch.Tensor, *per_row: NDArray | None) -> torch.Tensor:
        if x.ndim != 2 or x.shape[1] != self.d:
            raise UsageError("vectors of the wrong shape", got=tuple(x.shape), expected=f"(n, {self.d})")
        for column in per_row:
            if column is not None and len(column) != len(x):
                raise UsageError("one label a vector is needed", got=f"{len(column)} labels", expected=len(x))
        x = x.detach()
        x = x if x.dtype == torch.float64 else x.float()
        return x.to(self.device)

    def _good(self, norms: torch.Tensor, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the rows that have a direction; zero vectors, and vectors that are not finite, are counted."""
        values = norms.cpu().numpy()
        finite, zero = np.isfinite(values), values == 0
        good = finite & ~zero
        if not good.all():
            for part, chosen in (("rest", ~first), ("first", first)):
                self._sums[f"{part}.nonfinite"] += int((~finite & chosen).sum())
                self._sums[f"{part}.zero"] += int((zero & chosen).sum())
        return good

    def _add_directions(
        self, found: Binned, totals: torch.Tensor, keys: Keys | None, groups: NDArray[np.int64], *, whole: bool
    ) -> None:
        """Add everything but the second moment: sums by sequence, or by group (no keys) where each has one vector."""
        n, named = totals[0], dict(zip(("n", "norm", "norm2", "fourth"), totals, strict=True))
        target = torch.from_numpy(np.arange(self.groups) if keys is None else groups).to(self.device)
        for p, part in enumerate(PARTS):
            if not bool(n[p::2].any()):
                continue
            self._sums[f"{part}.unit2"] += found.unit2[p]
            for name, values in (named | {"x": found.sums[:, 0], "unit": found.sums[:, 1]}).items():
                self._sums[f"{part}.{name}"].index_add_(0, target, values[p::2].to(self._sums[f"{part}.{name}"].dtype))
            if keys is None:  # ‖u‖² = 1, and one vector makes n_s² = 1
                for name in ("energy", "pairs", "sequences"):
                    self._sums[f"{part}.{name}"].index_add_(0, target, n[p::2])
        if keys is None:
            self._sums["cross.sequences"].index_add_(0, target, n[0::2] + n[1::2])
            return
        counts = n.cpu().numpy().astype(np.int64).reshape(-1, 2)
        unit = found.sums[:, 1].unflatten(0, (-1, 2))  # (S, 2, d)
        self._add_finished(self._sequences.add(keys, unit, counts, whole=whole))

    def _add_second_moment(
        self, x: torch.Tensor, norms: torch.Tensor, first: NDArray[np.bool_], block_sums: torch.Tensor
    ) -> None:
        if not _FLOAT32_SAFE[0] < float(norms.max()) < _FLOAT32_SAFE[1]:
            x = x.double()
        omega = torch.tensor(projection(self.d, self.seed), device=x.device) if self.sketched else None
        for number, sums in enumerate(block_sums):
            rows = slice(number * GRAM_BLOCK, (number + 1) * GRAM_BLOCK)
            apart = np.flatnonzero(first[rows])
            add_products(self._sums, "rest", x[rows], sums[0], without=apart, omega=omega)
            if len(apart):
                firsts = x[rows][torch.from_numpy(apart).to(x.device)]
                if len(apart) <= _FEW and self.spectrum:
                    self._sums["first.second"].addmm_(firsts.double().T, firsts.double())
                else:
                    add_products(self._sums, "first", firsts, sums[1], omega=omega)

    def seal(self) -> None:
        """Close every open sequence. What is merged after that must hold whole sequences, on both sides."""
        self._add_finished(self._sequences.finish(list(self._sequences.open)))

    def _add_finished(self, finished: Iterable[Finished], sums: dict[str, torch.Tensor] | None = None) -> None:
        """Add ‖Σ_seq u‖² and n_seq² of finished sequences, for both parts and for what joins them."""
        sums = self._sums if sums is None else sums
        for keys, unit, n in finished:
            group = torch.from_numpy(group_of(keys, groups=self.groups)).to(self.device)
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
        self._add_finished(self._sequences.stacked(self._sequences.open), closed)
        arrays = {name: tensor.cpu().numpy() for name, tensor in closed.items()}
        return sums_of(arrays | {"meta": np.array([self.d, self.groups, 0, self.seed])}, positions)

    def sample(self) -> Sample:
        """The vectors that were kept whole."""
        return self.reservoir.sample()

    def merge(self, other: Moments) -> None:
        """Add what another Moments saw; refuses one of another kind, and sequences that were closed in two places."""
        mine, theirs = (
            (m.d, m.groups, m.spectrum, m.sketched, m.seed, m.reservoir.capacity, m.reservoir.seed, m.extremes is None)
            for m in (self, other)
        )
        if mine != theirs:
            names = "d, groups, spectrum, sketch, seed, capacity and seed of the reservoir, maxima"
            raise UsageError(f"cannot merge moments of different kinds ({names})", got=theirs, expected=mine)
        self._sequences.check_merge(other._sequences)
        for name, tensor in self._sums.items():
            tensor += other._sums[name].to(self.device)
        self._add_finished(self._sequences.merge(other._sequences))
        self.reservoir.merge(other.reservoir)
        if self.extremes is not None and other.extremes is not None:
            self.extremes.merge(other.extremes)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything, as a flat dict of tensors that safetensors stores."""
        return {
            **{name: tensor.cpu().clone() for name, tensor in self._sums.items() if not self._nothing(name)},
            **{f"reservoir.{name}": tensor for name, tensor in self.reservoir.state().items()},
            **self._sequences.state(),
            **{f"extremes.{name}": t.clone() for name, t in (self.extremes.state() if self.extremes else {}).items()},
            "meta": torch.tensor(
                [self.d, self.groups, int(self.spectrum or self.sketched), self.seed, self.open_limit]
            ),
        }

    def _nothing(self, name: str) -> bool:
        """The long sums of no vectors need not be stored."""
        part, _, what = name.partition(".")
        return (
            what in LONG and not int(self._sums[f"{part}.n"].sum()) and bool(int(self._sums[f"{OTHER[part]}.n"].sum()))
        )

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor], *, device: torch.device | str = "cpu") -> Moments:
        """The inverse of `state`."""
        d, groups, spectrum, seed, limit = (int(value) for value in state["meta"])
        moments = cls(d, spectrum=bool(spectrum), groups=groups, seed=seed, device=device)
        for name in moments._sums.keys() & state.keys():
            moments._sums[name] = state[name].to(device).clone()
        for name in {f"{part}.fourth" for part in PARTS} - state.keys():  # earlier versions did not keep it
            moments._sums[name] += torch.nan
        moments.reservoir = Reservoir.from_state(dict(under("reservoir.", state)))
        extremes = dict(under("extremes.", state))
        moments.extremes = Extremes.from_state(extremes) if extremes else None
        limit = limit if "numbered" in state else moments.open_limit  # earlier versions wrote another number there
        moments._sequences = Sequences.from_state(state, d, limit=limit, device=moments.device)
        return moments


def _distinct(sequences: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """`np.unique` with its inverse, without sorting what is sorted and distinct already."""
    if bool(np.all(sequences[1:] > sequences[:-1])):
        return sequences, np.arange(len(sequences))
    return np.unique(sequences, return_inverse=True)
