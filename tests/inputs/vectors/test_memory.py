"""Arrays in memory are read like files."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
GROUPS = [f"u{i // 5}" for i in range(50)]


def column(x=X):
    return pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])


KINDS = {
    "numpy": lambda: X,
    "fortran": lambda: np.asfortranarray(X),
    "strided": lambda: np.repeat(X, 2, axis=0)[::2],
    "tensor": lambda: torch.from_numpy(X).clone().requires_grad_(),
    "transposed": lambda: torch.from_numpy(np.ascontiguousarray(X.T)).T,
    "list": lambda: [X[:20], torch.from_numpy(X[20:])],
    "rows": lambda: list(X),
    "rows of tensors": lambda: list(torch.from_numpy(X)),
    "rows of series": lambda: [pd.Series(row) for row in X],
    "negative view": lambda: torch.from_numpy(-1j * X).conj().imag,
    "series of lists": lambda: pd.Series(list(X)),
    "polars series of lists": lambda: pl.Series("v", list(X)),
    "table": lambda: pa.table({"v": column(), "word": ["a"] * 50}),
    "column": lambda: pa.chunked_array([column(X[:30]), column(X[30:])]),
    "array": column,
    "batch": lambda: pa.table({"v": column()}).to_batches()[0],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_its_rows_and_groups(kind):
    source = open_vectors(KINDS[kind](), groups=GROUPS)
    blocks = list(source.blocks(7))
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), X)
    assert [key for block in blocks for key in block.keys] == GROUPS
    assert (source.name, source.rows, source.dim, source.dtype) == ("array in memory", 50, 4, "float32")
    assert (source.unreadable, source.notes) == ([], [])
    assert source.chunks == sum(1 for _ in open_vectors(KINDS[kind]()).blocks())


def test_the_arrays_of_the_caller_are_left_alone():
    for given in (X.copy(), torch.from_numpy(X.copy())):
        for block in open_vectors(given).blocks(7):
            block.x[:] = 0
        np.testing.assert_array_equal(np.asarray(given), X)


def test_bfloat16_tensors_are_widened_exactly():
    half = torch.from_numpy(X).bfloat16()
    source = open_vectors(half)
    assert source.dtype == "bfloat16"
    np.testing.assert_array_equal(next(source.blocks()).x, half.float().numpy())


def test_the_fingerprint_follows_values_types_and_groups():
    other = X.copy()
    other[-1, -1] = np.nextafter(other[-1, -1], np.float32(9))
    data = [X, other, X.astype(np.float64), X.reshape(100, 2)]
    prints = [*(open_vectors(x).fingerprint() for x in data), open_vectors(X, groups=GROUPS).fingerprint()]
    assert len(set(prints)) == len(prints)
    assert open_vectors(torch.from_numpy(X.copy())).fingerprint() == prints[0] == open_vectors([X]).fingerprint()


def test_a_table_has_columns_groups_and_ids(tmp_path):
    data = pa.table({"v": column(), "w": column(2 * X), "user": GROUPS, "n": range(50)})
    pq.write_table(data, tmp_path / "x.parquet")
    for where in (data, tmp_path / "x.parquet"):
        (block,) = open_vectors(where, column="w", group="user", ids="n").blocks()
        np.testing.assert_array_equal(block.x, 2 * X)
        assert (block.keys, block.ids) == (GROUPS, list(map(str, range(50))))
        with pytest.raises(UsageError, match=r"got: +v, w\n"):
            open_vectors(where)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (X[0], {}, r"shape \(4,\)"),
        (X.astype(complex), {}, "real numbers"),
        (X, {"groups": GROUPS[:-1]}, r"49 groups\n +expected: 50"),
        ([X[:20], X[20:]], {"groups": [*GROUPS, "one more"]}, r"31 groups\n +expected: 30"),
        (X, {"groups": [*GROUPS[:-1], None]}, "a missing group: array in memory, row 49"),
        (X, {"groups": np.where(np.arange(50) == 3, np.nan, 1.0)}, "a missing group: array in memory, row 3"),
        (X, {"groups": np.ma.masked_equal(np.arange(50), 5)}, "a missing group: array in memory, row 5"),
        (X, {"groups": X}, r"groups of shape \(50, 4\)"),
        ([X[0], X[0, :3]], {}, "rows of different lengths"),
        (torch.from_numpy(X).to_sparse(), {}, "to_dense"),
        (X, {"column": "v"}, "no columns"),
        ([X, X[:, :3]], {}, r"array in memory 1\n +got: +3\n +expected: 4"),
        ([X, "x.npy"], {}, "a list of ndarray, str"),
        ([[0.1, 0.2], [0.3]], {}, "a list of list"),
        ("x.npy", {"groups": GROUPS}, "`group`"),
        (np.float32(3), {}, "not vectors\n +got: +float32"),
        (5, {}, "not vectors\n +got: +int"),
        (pl.DataFrame({"a": [1.0]}).lazy(), {}, "collect"),
        (pd.DataFrame(X[:, :2], columns=["a", "a"]), {}, "Duplicate column"),
        (pd.DataFrame({"a": [1, "x"]}), {}, "cannot read the data frame"),
        (pl.DataFrame({"a": [1, 2], "b": [3, 4]}), {}, "a: int64; b: int64\n.*\n.*convert them to floats"),
        (pd.Series(X[:, 0]), {}, r"shape \(50,\)"),
        (torch.from_numpy(X).to(torch.float8_e4m3fn), {}, "torch.float8"),
        (torch.empty(5, 4, device="meta"), {}, "without values"),
    ],
)
def test_bad_requests(data, options, message):
    with pytest.raises(UsageError, match=message):
        open_vectors(data, **options)


def test_an_empty_array_is_refused():
    with pytest.raises(InputError, match="no vectors"):
        open_vectors(X[:0])


def test_what_is_masked_is_missing():
    masked = np.ma.masked_array(X.copy(), mask=False)
    masked[7, 2] = np.ma.masked
    (block,) = open_vectors(masked).blocks()
    assert np.argwhere(np.isnan(block.x)).tolist() == [[7, 2]]
    (block,) = open_vectors(np.ma.masked_equal(np.arange(12).reshape(3, 4), 5)).blocks()
    assert np.argwhere(np.isnan(block.x)).tolist() == [[1, 1]]
