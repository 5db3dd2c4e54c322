import numpy as np
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors


def write_feather(data, path):
    pyarrow.feather.write_feather(data, path, compression="uncompressed")


WRITERS = {"x.parquet": pq.write_table, "x.feather": write_feather}


@pytest.fixture(params=WRITERS)
def write(request, tmp_path):
    def save(**columns):
        path = tmp_path / request.param
        WRITERS[request.param](pa.table(columns), path)
        return path

    return save


def read(path, rows=2, **options):
    blocks = list(open_vectors([path], **options).blocks(rows))
    return np.concatenate([block.x for block in blocks]), [key for block in blocks for key in block.keys or ()]


def test_one_of_several_list_columns_must_be_chosen(write):
    path = write(title=[[1.0]], body=[[2.0, 3.0]], words=[["a", "b"]], n=[1])
    with pytest.raises(UsageError, match=r"got: +title, body\n.*`column`"):
        open_vectors([path])
    with pytest.raises(UsageError, match=r"named 'words'.*\n.*one of: title, body"):
        open_vectors([path], column="words")
    np.testing.assert_array_equal(read(path, column="body")[0], [[2.0, 3.0]])


def test_a_table_without_lists_says_what_is_needed(write):
    with pytest.raises(UsageError, match="no column of lists of numbers"):
        open_vectors([write(a=[1.0, 2.0], b=["x", "y"])])


def test_groups_may_be_text_integers_or_dictionaries(write):
    path = write(
        v=[[1.0], [2.0], [3.0]], s=["a", "a", "é"], i=[7, 7, 8], d=pa.array(["p", "q", "p"]).dictionary_encode()
    )
    for group, expected in {"s": ["a", "a", "é"], "i": ["7", "7", "8"], "d": ["p", "q", "p"]}.items():
        assert read(path, group=group)[1] == expected
    with pytest.raises(UsageError, match=r"no column named 'z'.*\n.*one of: v, s, i, d"):
        open_vectors([path], group="z")


def test_a_ragged_row_is_named(write):
    path = write(v=[[1.0, 2.0]] * 5 + [[1.0]] + [[1.0, 2.0]])
    with pytest.raises(InputError, match=r"row 5\n +got: +1 numbers\n +expected: 2"):
        read(path)


def test_missing_rows_numbers_and_groups_are_named(write):
    with pytest.raises(InputError, match=r"row 3\n +got: +a missing list"):
        read(write(v=[[1.0, 2.0]] * 3 + [None]))
    with pytest.raises(InputError, match=r"row 4\n +got: +null at 1"):
        read(write(v=[[1.0, 2.0]] * 4 + [[1.0, None]]))
    with pytest.raises(InputError, match=r"row 2\n +got: +null"):
        read(write(v=[[1.0]] * 3, g=["a", "b", None]), group="g")


def test_a_fixed_size_column_with_a_missing_row_is_refused_too(write):
    column = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    try:
        path = write(v=column)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow does not write such a column")
    with pytest.raises(InputError, match="row 1"):
        read(path)


@pytest.mark.parametrize("rows", [[], [[]], [None]])
def test_tables_without_vectors_are_refused(write, rows):
    with pytest.raises(InputError, match="no vectors"):
        open_vectors([write(v=pa.array(rows, pa.list_(pa.float32())))])


def test_damaged_files_are_refused(write):
    path = write(v=[[float(i), 1.0] for i in range(1000)])
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-10], b"x" * 500):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=path.name):
            open_vectors([path])


def test_files_of_polars_can_be_read(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    frame = polars.DataFrame({"v": x, "g": ["a", "a", "b", "b"]})
    frame.write_parquet(tmp_path / "x.parquet")
    frame.write_ipc(tmp_path / "x.arrow", compat_level=polars.CompatLevel.oldest())
    frame.with_columns(polars.col("v").arr.to_list()).write_ipc(tmp_path / "l.arrow")
    for name in ("x.parquet", "x.arrow", "l.arrow"):
        got, keys = read(tmp_path / name, group="g")
        np.testing.assert_array_equal(got, x)
        assert keys == ["a", "a", "b", "b"]


@pytest.mark.parametrize("column", [None, "v"])
def test_two_columns_of_one_name_need_different_ones(tmp_path, column):
    lists = pa.array(np.eye(4).tolist())
    pq.write_table(pa.Table.from_arrays([lists, lists], names=["v", "v"]), tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=r"named 'v'[\s\S]*different names"):
        read(tmp_path / "x.parquet", column=column)


def test_of_several_columns_one_must_be_chosen(tmp_path):
    lists = pa.array(np.eye(4).tolist())
    pq.write_table(pa.Table.from_arrays([lists, lists], names=["v", "w"]), tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=r"v, w[\s\S]*choose one"):
        read(tmp_path / "x.parquet")
