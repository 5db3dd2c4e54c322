import json

import numpy as np
import pandas
import pytest

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

X = np.array([[0.5, -1.25], [3.0, 4e-3], [7.0, 0.0]])


@pytest.fixture
def write(tmp_path):
    def save(text, suffix="csv"):
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return save


def read(path, rows=2, **options):
    blocks = list(open_vectors([path], **options).blocks(rows))
    return np.concatenate([block.x for block in blocks]), [key for block in blocks for key in block.keys or ()]


BODY = "0.5,-1.25\n3,4e-3\n7,0\n"


@pytest.mark.parametrize(
    "text", [BODY, "x,y\n" + BODY, "0,1\n" + BODY, "\ufeffx,y\r\n" + BODY.replace("\n", "\r\n"), BODY.strip()]
)
def test_numbers_with_and_without_header(write, text):
    np.testing.assert_array_equal(read(write(text))[0], X)


@pytest.mark.parametrize("header", ["1,2,3", "1990,1991,1992", " 7, 8, 9"])
def test_a_header_that_counts_up_is_not_a_vector(write, header):
    np.testing.assert_array_equal(read(write(f"{header}\n0.5,1,2\n3,4,5\n"))[0], [[0.5, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(read(write("1,2,3\n4,4,5\n"))[0], [[1, 2, 3], [4, 4, 5]])  # whole numbers


def test_what_pandas_writes_is_read_and_its_index_is_not_a_dimension(tmp_path):
    frame = pandas.DataFrame(X)
    frame.to_csv(tmp_path / "x.csv", index=False)
    np.testing.assert_array_equal(read(tmp_path / "x.csv")[0], X)
    frame.to_csv(tmp_path / "i.csv")
    with pytest.raises(UsageError, match="index=False"):
        open_vectors([tmp_path / "i.csv"])
    frame["embedding"] = frame.to_numpy().tolist()
    frame[["embedding"]].to_csv(tmp_path / "l.csv")
    np.testing.assert_array_equal(read(tmp_path / "l.csv")[0], X)


def test_the_group_column_may_stand_anywhere(write):
    x, keys = read(write('a,g,b\n1,"p, q",2\n3,7,4\n'), group="g")
    np.testing.assert_array_equal(x, [[1, 2], [3, 4]])
    assert keys == ["p, q", "7"]
    with pytest.raises(UsageError, match="no column named 'h'"):
        open_vectors([write("a,g,b\n1,2,3\n")], group="h")
    with pytest.raises(UsageError, match="no column named 'g'"):
        open_vectors([write("1,2,3\n")], group="g")


def test_text_columns_are_refused_by_name(write):
    with pytest.raises(UsageError, match="title: 'War and Peace' in row 0"):
        open_vectors([write("title,a\nWar and Peace,1\n")])


def test_lists_in_cells(write):
    text = 'id,v,w\n1,"[0.5, -1.25]","[1]"\n2,"[3, 4e-3]","[2]"\n3,"[7.0, 0.0]","[3]"\n'
    x, keys = read(write(text), column="v", group="id")
    np.testing.assert_array_equal(x, X)
    assert keys == ["1", "2", "3"]
    with pytest.raises(UsageError, match=r"got: +v, w\n"):
        open_vectors([write(text)])
    np.testing.assert_array_equal(read(write('"[1, 2]"\n"[3, 4]"\n'))[0], [[1, 2], [3, 4]])


def test_a_cell_may_hold_a_long_vector(write):
    vector = np.random.default_rng(0).standard_normal(10_000).tolist()
    x, _ = read(write(f'v\n"{json.dumps(vector)}"\n'))
    np.testing.assert_array_equal(x[0], vector)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"x\.csv\n.*Row #3.*'x'"),
        ("a,b\n1,2\n3\n", r"Row #3.*Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,\n", r"row 1\n.*column b"),
        ("a,b\n", "no rows"),
        ("a;b\n1;2\n", "not separated by commas"),
        ("a\tb\n1\t2\n", "not separated by commas"),
        ("", "empty"),
        ("\n1,2\n", "first line is empty"),
        ('v\n"[1, 2]"\n"[1]"\n', r"row 1, v\n.*1 numbers\n +expected: 2"),
        ('v\n"[1, 2]"\n"[1 2]"\n', r"row 1, v\n.*\[1 2\]"),
        ('v\n"[1, 2]"\n"[1, null]"\n', "not a list of numbers.*row 1"),
        (b"a,b\n1,2\n\xff,2\n", r"x\.csv"),
        (b"\xff\xfea,b\n", r"x\.csv"),
    ],
)
def test_faults_in_a_csv_are_named(write, text, message):
    with pytest.raises(InputError, match=message):
        read(write(text))


def test_two_columns_of_one_name_are_refused(write):
    with pytest.raises(UsageError, match="same name"):
        open_vectors([write("a,a\n1,2\n")])


def test_one_of_several_fields_must_be_chosen(write):
    path = write('{"q": [1, 2], "words": ["a"], "d": [3, 4], "id": "x"}\n', "jsonl")
    with pytest.raises(UsageError, match=r"got: +q, d\n"):
        open_vectors([path])
    x, keys = read(path, column="d", group="id")
    np.testing.assert_array_equal(x, [[3, 4]])
    assert keys == ["x"]
    with pytest.raises(UsageError, match="no field named 'article'"):
        open_vectors([path], column="d", group="article")


def test_bare_lists_have_no_fields(write):
    with pytest.raises(UsageError, match="without fields"):
        open_vectors([write("[1, 2]\n", "jsonl")], column="v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("[]\n", "no vectors"),
        ('{"v": [1]}\n{"v": [1', "line 2"),
        ('{"v": [1]}\n\n{"v": [1, 2]}\n', r"line 3\n.*2 numbers\n +expected: 1"),
        ('{"v": [1]}\n{"w": [1]}\n', "no 'v' here.*line 2"),
        ('{"v": [1]}\n[1]\n', "no 'v' here.*line 2"),
        ('{"v": [1]}\n{"v": ["1"]}\n', "not a list of numbers.*line 2"),
        ('{"v": [1]}\n{"v": [null]}\n', "not a list of numbers.*line 2"),
        ('{"v": [1]}\n{"v": [true]}\n', "not a list of numbers.*line 2"),
        ("5\n", "not a list of numbers.*line 1"),
        (b'{"v": [1]}\n\xff\n', "line 2"),
    ],
)
def test_faults_in_a_jsonl_are_named(write, text, message):
    with pytest.raises(InputError, match=message):
        read(write(text, "jsonl"))


def test_a_missing_group_in_a_line_is_named(write):
    with pytest.raises(InputError, match=r"no 'g' here.*line 2"):
        read(write('{"v": [1], "g": 1}\n{"v": [2]}\n', "jsonl"), group="g")
