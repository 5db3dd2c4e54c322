import numpy as np
import pytest

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

X = np.arange(30, dtype=np.float32).reshape(10, 3)


def read(path, **options):
    return np.concatenate([block.x for block in open_vectors([path], **options).blocks(4)])


@pytest.mark.parametrize("shape", [(30,), (2, 5, 3), ()])
def test_only_matrices_are_vectors(tmp_path, shape):
    np.save(tmp_path / "x.npy", np.zeros(shape))
    with pytest.raises(UsageError, match=r"x\.npy\n +got: +shape \("):
        open_vectors([tmp_path / "x.npy"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_an_empty_matrix_is_refused(tmp_path, shape):
    np.save(tmp_path / "x.npy", np.zeros(shape))
    with pytest.raises(InputError, match="no vectors"):
        open_vectors([tmp_path / "x.npy"])


@pytest.mark.parametrize("array", [X.astype(complex), X.astype(str), np.array([[None, 1]], dtype=object)])
def test_only_real_numbers_are_vectors(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UsageError, match="real numbers"):
        open_vectors([tmp_path / "x.npy"])


def test_a_truncated_file_says_how_much_is_missing(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"truncated.*\n +got: +247 bytes\n +expected: 248 bytes"):
        open_vectors([path])


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x76\x00{'descr'", b"a,b\n1,2\n"])
def test_what_is_no_array_is_refused(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npy"):
        open_vectors([tmp_path / "x.npy"])


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    blocks = open_vectors([path]).blocks(4)
    next(blocks)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="shorter"):
        list(blocks)


def test_an_npy_has_no_columns(tmp_path):
    np.save(tmp_path / "x.npy", X)
    for options in ({"column": "x"}, {"group": "g"}):
        with pytest.raises(UsageError, match="neither columns nor groups"):
            open_vectors([tmp_path / "x.npy"], **options)


def test_one_of_several_matrices_of_an_npz_must_be_chosen(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=X, b=2 * X, ids=np.arange(10))
    with pytest.raises(UsageError, match=r"got: +a, b\n.*`column`"):
        open_vectors([path])
    with pytest.raises(UsageError, match=r"named 'c'.*\n.*one of: a, b"):
        open_vectors([path], column="c")
    np.testing.assert_array_equal(read(path, column="b"), 2 * X)


@pytest.mark.parametrize("groups", [np.arange(10) // 2, np.array([b"x", b"y"] * 5), np.array(["é", "y"] * 5)])
def test_groups_of_an_npz_are_integers_or_text(tmp_path, groups):
    np.savez(tmp_path / "x.npz", a=X, g=groups)
    blocks = open_vectors([tmp_path / "x.npz"], group="g").blocks(4)
    expected = [value.decode() if isinstance(value, bytes) else str(value) for value in groups.tolist()]
    assert [key for block in blocks for key in block.keys] == expected


@pytest.mark.parametrize("groups", [np.arange(9), np.ones((10, 1), dtype=int), np.linspace(0, 1, 10)])
def test_groups_that_do_not_fit_are_refused(tmp_path, groups):
    np.savez(tmp_path / "x.npz", a=X, g=groups)
    with pytest.raises(UsageError, match=r"array of labels.*\n.*\n +expected: text or integers \(10,\)"):
        open_vectors([tmp_path / "x.npz"], group="g", column="a")


def test_pickled_groups_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, g=np.array([None] * 10, dtype=object))
    with pytest.raises(UsageError, match="Python objects"):
        open_vectors([tmp_path / "x.npz"], group="g")


def test_a_missing_group_is_named_with_what_there_is(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, ids=np.arange(10))
    with pytest.raises(UsageError, match=r"named 'g'.*\n.*one of: a, ids"):
        open_vectors([tmp_path / "x.npz"], group="g")


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=X)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-30])
    with pytest.raises(InputError, match=r"\.npz"):
        open_vectors([path])
    content[200] ^= 255  # a value, behind the header: only its checksum knows
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        read(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_wrong_bit_far_behind_the_header_is_noticed(tmp_path, save):
    path = tmp_path / "x.npz"
    save(path, a=np.random.default_rng(0).standard_normal((20_000, 8)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged.*x\.npz"):
        read(path)
