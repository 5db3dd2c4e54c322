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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate import products
from anisoscope.accumulate.binned import GRAM_BLOCK, Array, Binned, binned
from anisoscope.accumulate.blocks import Block, array_of, block_of, exact, is_tensor, rows_of
from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.maxima import Extremes
from anisoscope.accumulate.reservoir import CAPACITY, Reservoir, under
from anisoscope.accumulate.sequences import Finished, Sequences
from anisoscope.accumulate.sketch import COLUMNS, projection
from anisoscope.accumulate.sums import LONG, Sample, Sums, sums_of
from anisoscope.accumulate.threads import small_matrices, suited_to
from anisoscope.errors import UsageError

LARGEST_SPECTRUM = 4096  # above this d, a d×d matrix is not built: the spectrum comes from a sketch
_HUGE = 65_536  # above this d (flattened maps) no sketch either, and fewer jackknife groups: sums stay in memory
_FEW = 64  # rows that are cheaper in float64 than about their mean
_AHEAD = 32  # blocks with which other threads begin: each keeps a product of d × d until it is added
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
    >>> moments.update(np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 0]]))
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
        device: str = "cpu",
        open_bytes: int = OPEN_BYTES,
        maxima: bool = False,
    ) -> None:
        if d < 1:
            raise UsageError("a cloud needs at least one dimension", got=f"d = {d}")
        self.d, self.seed = d, seed
        self.spectrum = spectrum and d <= LARGEST_SPECTRUM
        self.sketched = spectrum and LARGEST_SPECTRUM < d <= _HUGE
        self.groups = groups if groups is not None else (GROUPS if d <= _HUGE else GROUPS // 4)
        self.device = str(device)
        limit = max(_FEWEST_OPEN if d <= _HUGE else 16, open_bytes // (16 * d))
        self._sequences = Sequences(d, limit=limit)
        self.reservoir = Reservoir(d, capacity=reservoir, seed=seed)
        self.extremes = Extremes(d) if maxima else None
        self._sums: dict[str, Any] = {}  # arrays; those that are d×d tensors, where vectors lie on an accelerator
        for part in PARTS:
            self._sums |= {f"{part}.{name}": array for name, array in self._empty_part().items()}
        for name in ("energy", "pairs", "sequences"):
            self._sums[f"cross.{name}"] = np.zeros(self.groups)

    @property
    def open_limit(self) -> int:
        """How many sequences may be unfinished at a time."""
        return self._sequences.limit

    def _empty_part(self) -> dict[str, Any]:
        g, d = self.groups, self.d
        part: dict[str, Any] = {"unit2": np.zeros(d), "x": np.zeros((g, d)), "unit": np.zeros((g, d))}
        part |= {name: np.zeros(g) for name in ("norm", "norm2", "fourth", "energy", "pairs", "sequences")}
        part |= {"n": np.zeros(g, np.int64)}
        part |= {name: np.zeros(1, np.int64) for name in ("zero", "nonfinite", "single")}
        large = {"sketch": (d, COLUMNS), "square": (d,)} if self.sketched else {}
        large |= {"second": (d, d)} if self.spectrum else {}
        return part | {name: self._placed(np.zeros(shape)) for name, shape in large.items()}

    def _placed(self, array: NDArray) -> Any:
        """A large sum where its vectors are."""
        return array if self.device == "cpu" else block_of(array, self.device)

    # -- taking vectors in -------------------------------------------------------------------------------------------

    def update(
        self,
        x: Any,
        *,
        sequences: Keys | None = None,
        positions: NDArray[np.int64] | None = None,
        first: NDArray[np.bool_] | None = None,
        whole: bool = False,
        start: int | None = None,
    ) -> None:
        """Add the vectors x (n, d), an array or a tensor.

        - `sequences`: the key of each row's sequence; without it every row is a sequence of its own, known by its
          number.
        - `start`: the number of the first row, counted over all shards (default: one after the last that came here).
          Moments of numbered rows merge where their numbers differ.
        - `positions`: each row's place in its sequence (default: order of arrival); decides the reservoir's choice.
        - `first`: which rows are first positions.
        - `whole`: every sequence of this chunk is complete in it, so none is kept open.
        """
        x = self._checked(block_of(x, self.device), sequences, positions, first)
        n = len(x)
        if sequences is None:
            sequences, whole = self._sequences.number(n, start), True
            positions = np.zeros(n, dtype=np.int64) if positions is None else positions
        sequences = np.asarray(sequences, dtype=np.uint64)
        self._sequences.check(sequences)
        if positions is None:
            positions = self._sequences.arrivals(sequences, whole=whole)
        first = np.zeros(n, dtype=bool) if first is None else np.asarray(first, dtype=bool)
        self._add(x, sequences, positions, first, whole=whole)

    def _add(
        self, x: Block, sequences: Keys, positions: NDArray[np.int64], first: NDArray[np.bool_], *, whole: bool
    ) -> None:
        if not len(x):
            return
        keys, sequence_of = _distinct(sequences)
        groups = group_of(keys, groups=self.groups)  # (S,)
        singletons = whole and len(keys) == len(x)
        bin_of, bins = (groups[sequence_of], self.groups) if singletons else (sequence_of, len(keys))
        begun = self._begin_products(x, first)
        found, totals, norms = self._binned(x, 2 * bin_of + first, 2 * bins, busy=any(begun))
        good = self._good(norms, first)
        if not good.all():
            self._add(rows_of(x, good), sequences[good], positions[good], first[good], whole=whole)
            return
        self.reservoir.offer(x, sequences, positions, first)
        if self.extremes is not None:
            self.extremes.update(x, sequences, positions)
        self._add_directions(found, totals, None if singletons else keys, groups, whole=whole)
        if self.spectrum or self.sketched:
            self._add_second_moment(x, norms, first, found.blocks, begun)

    def arrivals(self, sequences: Keys | None, n: int) -> NDArray[np.int64]:
        """The places that `update` would give n rows of these sequences; counts them, so give them to it."""
        return np.zeros(n, dtype=np.int64) if sequences is None else self._sequences.arrivals(sequences, whole=False)

    def _begin_products(self, x: Block, first: NDArray[np.bool_]) -> list[products.Begun | None]:
        """Products that other threads begin with, by block; none where blocks hold rows that have to be left out."""
        blocks = [slice(start, start + GRAM_BLOCK) for start in range(0, len(x), GRAM_BLOCK)]
        bad = any(self._sums[f"{part}.{name}"][0] for part in PARTS for name in ("zero", "nonfinite"))
        if not self.spectrum or is_tensor(x) or bad:
            return [None] * len(blocks)
        begun = [products.begin(x[rows], np.flatnonzero(first[rows])) for rows in blocks[:_AHEAD]]
        return [*begun, *([None] * (len(blocks) - len(begun)))]

    def _binned(
        self, x: Block, bins: NDArray[np.int64], count: int, *, busy: bool = False
    ) -> tuple[Binned, Array, Array]:
        gram = self.spectrum or self.sketched
        if is_tensor(x):
            from anisoscope.accumulate import on_device

            return on_device.binned(x, bins, count, gram=gram)
        with small_matrices():
            return binned(x, bins, count, gram=gram, among=products.binning_threads(self.d) if busy else None)

    def _checked(self, x: Block, *per_row: NDArray | None) -> Block:
        if x.ndim != 2 or x.shape[1] != self.d:
            raise UsageError("vectors of the wrong shape", got=tuple(x.shape), expected=f"(n, {self.d})")
        for column in per_row:
            if column is not None and len(column) != len(x):
                raise UsageError("one label a vector is needed", got=f"{len(column)} labels", expected=len(x))
        return x

    def _good(self, norms: Array, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the rows that have a direction; zero vectors, and vectors that are not finite, are counted."""
        finite, zero = np.isfinite(norms), norms == 0
        good = finite & ~zero
        if not good.all():
            for part, chosen in (("rest", ~first), ("first", first)):
                self._sums[f"{part}.nonfinite"] += int((~finite & chosen).sum())
                self._sums[f"{part}.zero"] += int((zero & chosen).sum())
        return good

    def _add_directions(
        self, found: Binned, totals: Array, keys: Keys | None, groups: NDArray[np.int64], *, whole: bool
    ) -> None:
        """Add everything but the second moment: sums by sequence, or by group (no keys) where each has one vector."""
        n, named = totals[0], dict(zip(("n", "norm", "norm2", "fourth"), totals, strict=True))
        named |= {"x": found.sums[:, 0], "unit": found.sums[:, 1]}
        for p, part in enumerate(PARTS):
            if not n[p::2].any():
                continue
            self._sums[f"{part}.unit2"] += found.unit2[p]
            for name, values in named.items():
                mine = self._sums[f"{part}.{name}"]
                mine += (values[p::2] if keys is None else self._by_group(values[p::2], groups)).astype(mine.dtype)
            if keys is None:  # ‖u‖² = 1, and one vector makes n_s² = 1
                for name in ("energy", "pairs", "sequences"):
                    self._sums[f"{part}.{name}"] += n[p::2]
        if keys is None:
            self._sums["cross.sequences"] += n[0::2] + n[1::2]
            return
        counts = n.astype(np.int64).reshape(-1, 2)
        unit = found.sums[:, 1].reshape(-1, 2, self.d)  # (S, 2, d)
        self._add_finished(self._sequences.add(keys, unit, counts, whole=whole))

    def _by_group(self, values: NDArray, groups: NDArray[np.int64]) -> Array:
        """Sums of values (S, …) over the sequences of each group."""
        if values.ndim == 1:
            return np.bincount(groups, values, minlength=self.groups).astype(float)
        order = np.argsort(groups, kind="stable")
        some, starts = np.unique(groups[order], return_index=True)
        found = np.zeros((self.groups, *values.shape[1:]))
        for group, rows in zip(some, np.split(order, starts[1:]), strict=True):
            found[group] = values[rows].sum(0)
        return found

    def _add_second_moment(
        self,
        x: Block,
        norms: Array,
        first: NDArray[np.bool_],
        block_sums: NDArray[np.float64],
        begun: Sequence[products.Begun | None],
    ) -> None:
        if not _FLOAT32_SAFE[0] < norms.max() < _FLOAT32_SAFE[1]:
            x, begun = exact(x), [None] * len(begun)
        omega = projection(self.d, self.seed) if self.sketched else None
        for number, sums in enumerate(block_sums):
            rows = slice(number * GRAM_BLOCK, (number + 1) * GRAM_BLOCK)
            apart = np.flatnonzero(first[rows])
            more = {} if begun[number] is None else {"begun": begun[number]}
            self._add_products("rest", x[rows], sums[0], without=apart, omega=omega, **more)
            if len(apart):
                self._add_products("first", rows_of(x[rows], apart), sums[1], omega=omega)

    def _add_products(self, part: str, x: Block, total: Array, **options: Any) -> None:
        if part == "first" and len(x) <= _FEW and self.spectrum:
            x = exact(x)
        if is_tensor(x):
            from anisoscope.accumulate import on_device

            on_device.add_products(self._sums, part, x, total, **options)
        else:
            with suited_to(self.d):
                products.add_products(self._sums, part, x, total, **options)

    def seal(self) -> None:
        """Close every open sequence. What is merged after that must hold whole sequences, on both sides."""
        self._add_finished(self._sequences.finish(list(self._sequences.open)))

    def _add_finished(self, finished: Iterable[Finished], sums: dict[str, Any] | None = None) -> None:
        """Add ‖Σ_seq u‖² and n_seq² of finished sequences, for both parts and for what joins them."""
        sums = self._sums if sums is None else sums
        for keys, unit, counts in finished:
            group, n = group_of(keys, groups=self.groups), counts.astype(float)
            gram = unit @ unit.swapaxes(1, 2)  # (S, 2, 2)
            for p, part in enumerate(PARTS):
                sums[f"{part}.energy"] += self._by_group(gram[:, p, p], group)
                sums[f"{part}.pairs"] += self._by_group(np.square(n[:, p]), group)
                sums[f"{part}.sequences"] += self._by_group(n[:, p] > 0, group)
            sums["cross.energy"] += self._by_group(2 * gram[:, 0, 1], group)
            sums["cross.pairs"] += self._by_group(2 * n[:, 0] * n[:, 1], group)
            sums["cross.sequences"] += self._by_group(n.sum(1) > 0, group)

    # -- reading, merging, storing -----------------------------------------------------------------------------------

    def sums(self, positions: str = "all") -> Sums:
        """The sums as numpy arrays, over `all` positions, the `rest` or the `first`."""
        names = {f"{part}.{name}" for part in PARTS for name in ("energy", "pairs", "sequences")}
        names |= {"cross.energy", "cross.pairs", "cross.sequences"}
        closed = self._sums | {name: self._sums[name].copy() for name in names}
        self._add_finished(self._sequences.stacked(self._sequences.open), closed)
        arrays = {name: array_of(one) for name, one in closed.items()}
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
        for name, mine in self._sums.items():
            mine += self._placed(array_of(other._sums[name])) if is_tensor(mine) else array_of(other._sums[name])
        self._add_finished(self._sequences.merge(other._sequences))
        self.reservoir.merge(other.reservoir)
        if self.extremes is not None and other.extremes is not None:
            self.extremes.merge(other.extremes)

    def state(self) -> dict[str, NDArray]:
        """Everything, as a flat dict of arrays that safetensors stores."""
        extremes = self.extremes.state() if self.extremes else {}
        return {
            **{name: array_of(one).copy() for name, one in self._sums.items() if not self._nothing(name)},
            **{f"reservoir.{name}": array for name, array in self.reservoir.state().items()},
            **self._sequences.state(),
            **{f"extremes.{name}": array.copy() for name, array in extremes.items()},
            "meta": np.array([self.d, self.groups, int(self.spectrum or self.sketched), self.seed, self.open_limit]),
        }

    def _nothing(self, name: str) -> bool:
        """The long sums of no vectors need not be stored."""
        part, _, what = name.partition(".")
        return (
            what in LONG and not int(self._sums[f"{part}.n"].sum()) and bool(int(self._sums[f"{OTHER[part]}.n"].sum()))
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, device: str = "cpu") -> Moments:
        """The inverse of `state`."""
        d, groups, spectrum, seed, limit = (int(value) for value in state["meta"])
        moments = cls(d, spectrum=bool(spectrum), groups=groups, seed=seed, device=device)
        for name in moments._sums.keys() & state.keys():
            array = np.require(state[name], requirements="W")
            moments._sums[name] = moments._placed(array) if is_tensor(moments._sums[name]) else array
        for name in {f"{part}.fourth" for part in PARTS} - state.keys():  # earlier versions did not keep it
            moments._sums[name] += np.nan
        moments.reservoir = Reservoir.from_state(dict(under("reservoir.", state)))
        extremes = dict(under("extremes.", state))
        moments.extremes = Extremes.from_state(extremes) if extremes else None
        limit = limit if "numbered" in state else moments.open_limit  # earlier versions wrote another number there
        moments._sequences = Sequences.from_state(state, d, limit=limit)
        return moments


def _distinct(sequences: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """`np.unique` with its inverse, without sorting what is sorted and distinct already."""
    if bool(np.all(sequences[1:] > sequences[:-1])):
        return sequences, np.arange(len(sequences))
    return np.unique(sequences, return_inverse=True)
