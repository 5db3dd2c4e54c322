import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

X = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.fixture
def path(tmp_path):
    save_file({"a": X, "b": 2 * X, "bias": X[0], "ids": np.arange(10) // 3}, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def test_one_of_several_matrices_must_be_chosen(path):
    with pytest.raises(UsageError, match=r"got: +a, b\n.*`column`"):
        open_vectors([path])
    with pytest.raises(UsageError, match=r"named 'bias'.*\n.*one of: a, b"):
        open_vectors([path], column="bias")
    blocks = open_vectors([path], column="b").blocks(4)
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), 2 * X)


def test_groups_come_from_a_tensor_of_integers(path):
    blocks = open_vectors([path], column="a", group="ids").blocks(4)
    assert [key for block in blocks for key in block.keys] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3 + ["3"]
    for group in ("bias", "b"):
        with pytest.raises(UsageError, match="array of labels does not fit"):
            open_vectors([path], column="a", group=group)
    with pytest.raises(UsageError, match="no tensor named 'articles'"):
        open_vectors([path], column="a", group="articles")


def test_a_truncated_file_is_refused(path):
    content = path.read_bytes()
    for size in (0, 5, 8, 40):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"x\.safetensors"):
            open_vectors([path], column="b")
    save_file({"b": X}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        open_vectors([path])


@pytest.mark.parametrize(
    "header",
    [
        b"not json at all",
        b"[1, 2, 3]",
        b'{"x": 5}',
        b'{"x": {"dtype": "F32", "shape": [1, 1]}}',
        b'{"x": {"dtype": "F32", "shape": [10, 3], "data_offsets": [0, 4]}}',
    ],
)
def test_a_damaged_header_is_refused(path, header):
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(200))
    with pytest.raises(InputError, match="damaged"):
        open_vectors([path])


def test_a_type_that_cannot_be_read_matters_only_where_it_is_chosen(path):
    entry = {"shape": [2, 2], "data_offsets": [0, 4]}
    good = {"dtype": "I8", "shape": [2, 2], "data_offsets": [4, 8]}
    header = json.dumps({"eight": entry | {"dtype": "F8_E4M3"}, "good": good}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([0, 0, 0, 0, 1, 2, 3, 255]))
    np.testing.assert_array_equal(next(open_vectors([path], column="good").blocks()).x, [[1, 2], [3, -1]])
    with pytest.raises(UsageError, match="F8_E4M3"):
        open_vectors([path], column="eight")
