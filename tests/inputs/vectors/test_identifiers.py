"""A row number or an id is never measured as a dimension."""

import numpy as np
import pandas
import pytest

from anisoscope.errors import UsageError
from anisoscope.inputs.vectors.source import open_vectors

N, D = 200, 8
X = np.random.default_rng(0).standard_normal((N, D)) + 0.5
NAMES = [f"d{k}" for k in range(D)]


def write(path, values, name, *, x=X, names=NAMES, at=0):
    frame = pandas.DataFrame(x, columns=names)
    frame.insert(at, name, values)
    frame.to_csv(path, index=False)
    return path


def read(path, **options):
    source = open_vectors(path, **options)
    return np.concatenate([block.x for block in source.blocks()]), source.notes


def mean_cosine(x):
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    return ((units @ units.T).sum() - len(x)) / (len(x) * (len(x) - 1))


NUMBERS = ["id", "ID", "doc_id", "docId", "user-id", "row number"]
IDENTIFIERS = [*NUMBERS, "index", "idx", "row", "key", "label", "uuid", "Unnamed: 0"]


@pytest.mark.parametrize("at", [0, 3, D])
@pytest.mark.parametrize("name", ["id", "label"])
def test_the_mean_cosine_is_that_of_the_vectors(tmp_path, name, at):
    x, notes = read(write(tmp_path / "x.csv", np.arange(1000, 1000 + N), name, at=at))
    np.testing.assert_array_equal(x, X)
    assert mean_cosine(x) == pytest.approx(mean_cosine(X))
    assert mean_cosine(np.column_stack([np.arange(1000, 1000 + N), X])) > 0.99  # what it would have been
    assert notes == [("x.csv", f"not dimensions, left out: {name}")]


@pytest.mark.parametrize("name", IDENTIFIERS)
@pytest.mark.parametrize(
    "values", [np.arange(N), np.arange(N) * 7 % 50, [f"a{i}" for i in range(N)], np.arange(N) * 1.0]
)
def test_columns_named_like_identifiers_are_left_out(tmp_path, name, values):
    x, notes = read(write(tmp_path / "x.csv", values, name))
    np.testing.assert_array_equal(x, X)
    assert name in notes[0][1]


@pytest.mark.parametrize("name", ["d0", "x", "dim_0", "0", "grid", "width", "V1", "embedding.0"])
def test_names_of_dimensions_are_not_taken_for_identifiers(tmp_path, name):
    x, notes = read(write(tmp_path / "x.csv", X[:, 0], name, x=X[:, 1:], names=NAMES[1:]))
    np.testing.assert_array_equal(x, X)
    assert notes == []


@pytest.mark.parametrize(
    ("values", "name"),
    [(np.arange(N), "n"), (np.arange(N) * 7919 % 1009, "account"), (X[:, 0], "key")],
    ids=["counts up", "integers among fractions", "an identifier's name over fractions"],
)
def test_what_may_be_an_identifier_is_refused_until_the_dimensions_are_named(tmp_path, values, name):
    path = write(tmp_path / "x.csv", values, name)
    with pytest.raises(UsageError, match=rf"got: +{name}: .*\n.*`column`, such as 'd\*'"):
        open_vectors(path)
    np.testing.assert_array_equal(read(path, column="d*")[0], X)
    np.testing.assert_array_equal(read(path, column="d1,d3")[0], X[:, [1, 3]])
    np.testing.assert_array_equal(read(path, column="*")[0], np.column_stack([values, X]))
    np.testing.assert_array_equal(read(path, group=name)[0], X)
    with pytest.raises(UsageError, match="no column named 'e"):
        open_vectors(path, column="e*")


def test_without_a_header_a_first_column_that_counts_is_refused(tmp_path):
    np.savetxt(tmp_path / "x.csv", np.column_stack([np.arange(N), X]), delimiter=",")
    with pytest.raises(UsageError, match="may be identifiers"):
        open_vectors(tmp_path / "x.csv")
    np.testing.assert_allclose(read(tmp_path / "x.csv", column="[1-9]*")[0], X)


def test_quantised_vectors_and_dead_dimensions_are_dimensions(tmp_path):
    whole = np.random.default_rng(1).integers(-128, 128, (N, D))
    pandas.DataFrame(whole, columns=NAMES).to_csv(tmp_path / "q.csv", index=False)
    np.savetxt(tmp_path / "r.csv", whole, delimiter=",", fmt="%d")
    dead = np.where(np.arange(D) == 2, 0, X)
    np.savetxt(tmp_path / "d.csv", dead, delimiter=",", fmt="%.17g")
    counted = X.copy()
    counted[:, 4] = np.arange(N)
    pandas.DataFrame(counted, columns=NAMES).to_csv(tmp_path / "c.csv", index=False)
    for name, x in {"q": whole, "r": whole, "d": dead, "c": counted}.items():
        np.testing.assert_array_equal(read(tmp_path / f"{name}.csv")[0], x)


def test_ids_asked_for_are_read_beside_the_vectors(tmp_path):
    path = write(tmp_path / "x.csv", [f"a{i}" for i in range(N)], "title")
    source = open_vectors(path, ids="title")
    assert [name for block in source.blocks(64) for name in block.ids] == [f"a{i}" for i in range(N)]
    np.testing.assert_array_equal(read(path, ids="title")[0], X)


def test_a_last_line_without_an_end_is_noted(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n0.5,1.25\n0.25,1.12")
    assert "may be cut off" in open_vectors(tmp_path / "x.csv").notes[0][1]
