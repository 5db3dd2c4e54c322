"""A remedy to take away: one affine map and a norm, fitted on streamed sums, used like an estimator of scikit-learn.

    remedy = Remedy("whiten", dims=128)
    for block in blocks:
        remedy.partial_fit(block)                 # sums only: memory O(d²), in any order, any number of rows
    repaired = remedy.transform(x)                # y = (x − μ)·W, then y/‖y‖
    remedy.threshold(0.01)                        # the cosine that 1 % of unrelated pairs exceed after the map
    Remedy("centre").fit(x, queries=q).side("query").transform(q)    # queries about their own mean
    remedy.save("remedy.safetensors")             # mean, matrix and floor, with what they came from

`best` is chosen on groups that no candidate was fitted on; the chosen one is then fitted on everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.accumulate.blocks import precision
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.geometry.corrections import METHODS, Affine
from anisoscope.inputs.vectors.memory import check_labels, row_labels, unmasked, values_of_tensor
from anisoscope.runs.settings import Sample

LEVELS = np.concatenate([np.linspace(0, 0.99, 100), 1 - np.geomspace(0.009, 1e-5, 60)])
"""At which the floor is kept; finer where thresholds are looked for."""
_BLOCK = 256
_PARAMETERS = ("method", "dims", "seed", "sample")


@dataclass
class Remedy:
    """A correction that can be kept: `method` is one of centre, standardise, all-but-the-top, whiten, whiten-k,
    soft-zca, or best; `dims` is the number of dimensions that it ends in.

    >>> x = np.random.default_rng(0).standard_normal((500, 4)) + [9, 0, 0, 0]
    >>> remedy = Remedy("centre").fit(x)
    >>> remedy.transform(x).shape, remedy.threshold(0.05) < 0.9 < Remedy("none").fit(x).threshold(0.05)
    ((500, 4), True)
    """

    method: str = "best"
    dims: int | None = None
    seed: int = 0
    sample: int = 4096
    map: Affine | None = None
    floor: NDArray[np.float64] | None = None  # cosines of unrelated pairs at LEVELS, after the map
    query_mean: NDArray[np.float64] | None = None  # what queries are centred on, where they were given apart
    length: float | None = None  # of the vectors that it was fitted on: the root of their mean squared norm
    about: dict[str, Any] = field(default_factory=dict)
    _sums: dict[str, Any] = field(default_factory=dict, repr=False)  # of documents (rows), and of queries

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, "best", "none"):
            raise UsageError("no such method", got=self.method, expected=", ".join((*METHODS, "best")))
        if self.dims is not None and not isinstance(self.dims, int | np.integer):
            raise UsageError("dimensions are counted", got=self.dims, expected="a whole number")
        Sample.check({"sample": self.sample, "seed": self.seed}, command="Remedy")

    def fit(
        self, x: ArrayLike, y: Any = None, *, groups: Sequence[Any] | None = None, queries: ArrayLike | None = None
    ) -> Self:
        """Fit on the rows of x (n, d); `groups` names the sequence of each, of which some are held out to choose.

        Where `queries` (m, d) lie elsewhere than documents, each side is centred on its own mean (`side`). `y` is what
        pipelines pass, and is ignored.
        """
        self._sums, self.about, self.map = {}, {}, None
        return self.partial_fit(x, y, groups=groups, queries=queries)

    def partial_fit(
        self, x: ArrayLike, y: Any = None, *, groups: Sequence[Any] | None = None, queries: ArrayLike | None = None
    ) -> Self:
        """Add rows; the map is made of all that came when it is next asked for."""
        if self.map is not None and not self._sums:
            raise UsageError(
                "a remedy that was loaded cannot learn more: its file keeps the map, not the sums",
                do="call fit to start over, or partial_fit on a new Remedy with all rows",
            )
        rows, asked = self._checked(x), None if queries is None else _rows(queries)
        if asked is not None and asked.shape[1:] != rows.shape[1:]:
            raise UsageError(
                "queries of another dimension", got=f"shape {asked.shape}", expected=f"(n, {rows.shape[1]})"
            )
        self._add("rows", rows, groups)
        if asked is not None:
            self._add("queries", asked, None)
        self.map = self.query_mean = None
        return self

    def _checked(self, x: ArrayLike) -> NDArray[Any]:
        """The rows of x; refuses those of another dimension than what came before."""
        rows = _rows(x)
        if rows.ndim != 2:
            raise UsageError("not a matrix of vectors", got=f"shape {rows.shape}", expected="(n, d)")
        known = self._sums["rows"].parts.values() if self._sums else ()
        d = next((moments.d for moments in known), rows.shape[1])
        if rows.shape[1] != d:
            raise UsageError("vectors of another dimension", got=f"shape {rows.shape}", expected=f"(n, {d})")
        return rows

    def _add(self, side: str, rows: NDArray[Any], groups: Sequence[Any] | None) -> None:
        from anisoscope.accumulate.keys import sequence_keys
        from anisoscope.runs.work.clouds import Folds

        if side not in self._sums:
            self._sums[side] = Folds(reservoir=self.sample, seed=self.seed)
            self.about[side] = 0
        start = self.about[side]
        numbers = np.arange(start, start + len(rows))
        if groups is None:
            keys = numbers.astype(np.uint64)
        else:
            labels = row_labels(groups)
            check_labels(labels, len(rows))
            keys = sequence_keys(labels)
        kind = precision(rows.dtype)
        self._sums[side].add_rows(np.ascontiguousarray(rows, dtype=kind), keys, numbers, whole=groups is None)
        self.about[side] += len(rows)

    def transform(self, x: ArrayLike) -> NDArray[np.floating]:
        """The rows of x (n, d) after the map, of unit norm, (n, k); in the precision that they came in.

        A row with NaN or infinite entries is NaN; one that the map makes zero, such as the mean itself, stays zero.
        """
        rows = _rows(x)
        fitted = self.fitted()
        if rows.ndim != 2 or rows.shape[1] != fitted.dims[0]:
            raise UsageError("vectors of another dimension", got=rows.shape, expected=f"(n, {fitted.dims[0]})")
        kind = precision(rows.dtype)
        made = fitted if kind == np.float64 else fitted.single
        out, held = np.empty((len(rows), fitted.dims[1]), kind), np.empty((_BLOCK, fitted.dims[0]), kind)
        small = np.finfo(kind).tiny ** 0.5 * 1e4  # of smaller norms the squares lose digits
        with np.errstate(all="ignore"):  # such rows are made again below
            for start in range(0, len(rows), _BLOCK):  # what is worked on stays in the cache
                part = out[start : start + _BLOCK]
                made.apply_into(part, rows[start : start + _BLOCK], held[: len(part)])
                norms = np.sqrt(part[:, None, :] @ part[:, :, None])[:, 0]
                part *= 1 / norms
                odd = np.flatnonzero(~((norms > small) & (norms < np.inf)))
                if len(odd):
                    exact = replace(fitted, mean=made.mean.astype(float))  # what equals the mean has no direction
                    part[odd] = _directions(exact, rows[start + odd].astype(float))
        return out

    def side(self, name: str) -> Self:
        """The remedy of one side: `document` is this one, `query` the same map about the queries' own mean."""
        if name not in ("document", "query"):
            raise UsageError("no such side", got=name, expected="document, query")
        if name == "document":
            return self
        self.fitted()
        if self.query_mean is None:
            raise UsageError("this remedy is the same for both sides", do="fit it with --queries, or leave out --side")
        return replace(self, map=replace(self.fitted(), mean=self.query_mean), query_mean=None, length=None)

    def fit_transform(
        self, x: ArrayLike, y: Any = None, *, groups: Sequence[Any] | None = None
    ) -> NDArray[np.floating]:
        """`fit`, then `transform`."""
        return self.fit(x, groups=groups).transform(x)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters it was made with, by name: `sklearn.base.clone` and grid searches read it."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **parameters: Any) -> Self:
        """Change the parameters it was made with; it must be fitted again."""
        made = type(self)(**{**self.get_params(), **parameters})
        self.__dict__.update(made.__dict__)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self.map is not None or bool(self._sums)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags  # asked for by scikit-learn alone

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def threshold(self, rate: float) -> float:
        """The cosine that unrelated pairs exceed at this rate after the map, from pairs that were held out."""
        if not 0 < rate < 1:
            raise UsageError("a rate lies between 0 and 1", got=rate)
        self.fitted()
        if self.floor is None:
            raise UsageError("this remedy keeps no floor", do="fit it anew")
        return float(np.interp(1 - rate, LEVELS, self.floor))

    def fitted(self) -> Affine:
        """The map; made of the sums where it is not there yet."""
        if self.map is None:
            if not self._sums:
                raise UsageError("the remedy is not fitted", do="call fit, or load one")
            from anisoscope.runs.work.collected import Part
            from anisoscope.studies.folds import OBSERVER, split_folds
            from anisoscope.studies.remedy.choice import choose

            sides = {side: split_folds(Part({OBSERVER: sums})) for side, sums in self._sums.items()}
            found = choose(sides["rows"], self.method, self.dims, queries=sides.get("queries"))
            self.map, self.floor, self.query_mean = found.map, found.floor, found.query_mean
            self.length = found.length
            self.about |= {"method": found.method, "sentence": found.sentence}
        return self.map

    # -- files -------------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The arrays that are stored."""
        made = self.fitted()
        kept = made.arrays if self.query_mean is None else made.arrays | {"mean.query": self.query_mean}
        kept = kept if self.length is None else kept | {"length": np.array([self.length])}
        return kept if self.floor is None else kept | {"floor.levels": LEVELS, "floor.values": self.floor}

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """One safetensors file, with method and origin in its metadata; `force` replaces a file of another kind."""
        from safetensors.numpy import save_file

        from anisoscope.runs.writing import guarded

        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays().items()}
        with guarded(path, kind="safetensors", force=force) as partial:
            save_file(arrays, partial, {"anisoscope": json.dumps({"remedy": 1, "method": self.method, **self.about})})
        return Path(path)

    @classmethod
    def load(cls, where: str | Path) -> Self:
        """From the folder that `remedy fit` wrote, or the file that `save` wrote."""
        path = Path(where)
        if path.is_dir():
            from anisoscope.runs.store import open_run

            run = open_run(path)
            facts = {"data": run.manifest.get("data"), "protocol": run.manifest.get("protocol")}
            return cls._of(run.arrays(), {**facts, **run.manifest["settings"], "folder": str(path)}, path)
        return cls._of(*_read(path), path)

    @classmethod
    def _of(cls, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], where: Path) -> Self:
        if not {"mean", "matrix"} <= arrays.keys() or arrays["matrix"].shape[0] != arrays["mean"].shape[0]:
            raise InputError("this holds no remedy", where=where, got=", ".join(arrays) or "no arrays", do="remedy fit")
        kept = {name: np.asarray(arrays[name], float) for name in ("mean", "matrix", "axes", "gains") if name in arrays}
        made, own = Affine(**kept), arrays.get("mean.query")
        if not all(np.isfinite(part).all() for part in (*kept.values(), *([] if own is None else [own]))):
            raise InputError("the remedy holds numbers that are not finite", where=where, do="fit it anew")
        method = str(about.get("method", "none"))
        length = float(arrays["length"][0]) if "length" in arrays else None  # earlier versions did not keep it
        floor = arrays.get("floor.values")
        return cls(method, map=made, floor=floor, query_mean=own, length=length, about=dict(about))


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UsageError("no such remedy", where=path, expected="the folder of `remedy fit`, or a .safetensors file")
    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {}).get("anisoscope", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  # not a dict
    except (SafetensorError, ValueError, OSError) as error:
        raise StoreError("the remedy cannot be read", where=path, got=str(error).partition("\n")[0]) from error


def _directions(made: Affine, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of x (m, d) after the map, of unit norm at any scale: every row is divided by a power of two first."""
    scale = -np.frexp(np.maximum(np.abs(x).max(axis=1), np.abs(made.mean).max()))[1][:, None]
    y = replace(made, mean=np.zeros_like(made.mean)).apply(np.ldexp(x, scale) - np.ldexp(made.mean, scale))
    y = np.ldexp(y, -np.frexp(np.abs(y).max(axis=1))[1][:, None])
    norms = np.linalg.norm(y, axis=1, keepdims=True)
    return np.where(np.isfinite(norms), y / np.where(norms == 0, 1, norms), np.nan)


def _rows(x: Any) -> NDArray[Any]:
    if type(x).__module__.partition(".")[0] == "torch":
        return values_of_tensor(x)
    try:
        rows = unmasked(x) if isinstance(x, np.ma.MaskedArray) else np.asarray(x)
    except ValueError:  # rows of several lengths
        raise UsageError("not a matrix of vectors", got=type(x).__name__, expected="(n, d)") from None
    if rows.dtype.kind not in "biuf":
        raise UsageError("not an array of real numbers", got=f"dtype {rows.dtype}", expected="floats or integers")
    return rows
