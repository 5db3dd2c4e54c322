"""Files that no writer should have made, files that change, and things that are no files: an error that names them."""

import json
import os
import socket
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from anisoscope.errors import AnisoscopeError, InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

N, D = 20_000, 4
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


def write_arrow(path, rows=1000):
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("v", column.type)])) as writer:
        writer.write_table(pa.table({"v": column}), max_chunksize=rows)


WRITERS = {
    "x.npy": lambda p: np.save(p, X),
    "stored.npz": lambda p: np.savez(p, v=X),
    "packed.npz": lambda p: np.savez_compressed(p, v=X),
    "x.safetensors": lambda p: save_file({"v": X}, p),
    "x.parquet": lambda p: pq.write_table(pa.table({"v": list(X)}), p, row_group_size=1000),
    "x.arrow": write_arrow,
    "one batch.arrow": lambda p: write_arrow(p, rows=None),
    "x.csv": lambda p: np.savetxt(p, X, delimiter=","),
    "x.jsonl": lambda p: p.write_text("\n".join(json.dumps(row) for row in X.tolist())),
}


@pytest.fixture(params=WRITERS)
def file(request, tmp_path):
    WRITERS[request.param](tmp_path / request.param)
    return tmp_path / request.param


def read(path, **options):
    return np.concatenate([block.x for block in open_vectors(path, **options).blocks(1000)])


# -- files that change -----------------------------------------------------------------------------------------------


def edit(path):
    """Change one byte in place; the size stays."""
    with open(path, "r+b") as stream:
        stream.seek(-200, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(1, 1))  # the clock of the file system may be too coarse for the test


def test_a_file_edited_in_the_middle_of_a_pass_is_refused(file):
    blocks = open_vectors(file).blocks(1000)
    next(blocks)
    edit(file)
    with pytest.raises(InputError, match=file.name):
        list(blocks)


def test_a_file_edited_between_fingerprint_and_pass_is_refused(file):
    source = open_vectors(file)
    source.fingerprint()
    edit(file)
    with pytest.raises(InputError, match=f"changed while it was read.*{file.name}"):
        next(source.blocks())
    with pytest.raises(InputError, match=f"changed while it was read.*{file.name}"):
        source.fingerprint()


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_refused(file, tmp_path):
    source, before = open_vectors(file), file.stat()
    other = tmp_path / "other"
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, file)
    with pytest.raises(InputError, match="changed while it was read"):
        list(source.blocks())


def test_a_file_rewritten_in_place_with_its_time_set_back_is_refused(file):
    blocks, before = open_vectors(file).blocks(1000), file.stat()
    next(blocks)
    edit(file)
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of the file system may be coarse
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=file.name):
        list(blocks)


def test_a_file_deleted_in_the_middle_is_refused(file):
    source = open_vectors(file)
    blocks = source.blocks(1000)
    next(blocks)
    file.unlink()
    with pytest.raises(InputError, match=file.name):
        list(blocks)
    with pytest.raises(InputError, match=file.name):
        source.fingerprint()


def test_a_file_cut_in_the_middle_of_a_pass_is_refused(file):
    blocks = open_vectors(file).blocks(1000)
    next(blocks)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(InputError, match=file.name):
        list(blocks)


# -- things that are no files ----------------------------------------------------------------------------------------


def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.npy"))
        for place in (tmp_path / "pipe.npy", tmp_path / "socket.npy", "/dev/zero", "/dev/null"):
            with pytest.raises(UsageError, match="pipe, a socket or a device"):
                open_vectors(place)
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_array_equal(read(tmp_path), X)  # a folder's pipes are passed over


def test_a_folder_named_like_a_file_is_a_folder(tmp_path):
    (tmp_path / "x.npy").mkdir()
    for place in (tmp_path / "x.npy", f"{tmp_path}/*.npy"):
        with pytest.raises(InputError, match=r"no vectors files here.*npy"):
            open_vectors(place)
    np.save(tmp_path / "x.npy" / "y.npy", X)
    np.testing.assert_array_equal(read(tmp_path / "x.npy"), X)


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    np.save(tmp_path / "x.npy", X)
    os.chmod(tmp_path / "x.npy", 0)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    code = (
        "import os, sys\nfrom anisoscope.errors import InputError\n"
        "from anisoscope.inputs.vectors.source import open_vectors\n"
        "os.geteuid() or os.seteuid(65534)\n"
        "for place in sys.argv[1:]:\n"
        "    try: open_vectors(place)\n    except InputError as problem: print(problem)\n"
    )
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    places = [str(tmp_path / "x.npy"), str(locked / "y.npy")]
    done = subprocess.run([sys.executable, "-c", code, *places], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Permission denied") == 2
    assert all(place in done.stdout for place in places)


@pytest.mark.parametrize("name", ["a" * 300 + ".npy", "a\0b.npy"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(AnisoscopeError):
        open_vectors(name)


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "parquet", "arrow", "csv", "jsonl"])
def test_names_that_are_not_utf8_can_be_read_printed_and_stored(tmp_path, suffix):
    writer = next(write for name, write in WRITERS.items() if name.endswith(suffix))
    writer(tmp_path / f"x.{suffix}")
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9." + suffix.encode())
    os.rename(tmp_path / f"x.{suffix}", strange)
    source = open_vectors(strange)
    np.testing.assert_array_equal(next(source.blocks(10)).x, X[:10])
    assert source.name == f"caf\\udce9.{suffix}"
    assert len(source.fingerprint()) == 64
    with open(strange, "wb") as stream:
        stream.write(b"\xff" * 20)
    with pytest.raises(AnisoscopeError) as caught:
        read(strange)
    assert "caf\\udce9" in str(caught.value).encode("utf-8").decode()
    with pytest.raises(InputError):
        read(tmp_path)


# -- headers that promise the moon -----------------------------------------------------------------------------------


def npy_header(shape, *, fortran=False):
    import io

    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": fortran, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 2**62), (-3, 4), (3, -4)])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, None])
def test_absurd_shapes_are_refused(tmp_path, shape, fortran, compression):
    content = npy_header(shape, fortran=fortran) + bytes(100)
    path = tmp_path / ("x.npy" if compression is None else "x.npz")
    if compression is None:
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("v.npy", content)
    with pytest.raises(InputError, match=path.name):
        read(path)


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path):
    shape = (10**6, 10**6)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("v.npy", npy_header(shape, fortran=True) + bytes(1000))
        info = archive.infolist()[0]
        info.file_size = len(npy_header(shape, fortran=True)) + 4 * 10**12
    with pytest.raises(InputError, match=r"x\.npz"):
        read(tmp_path / "x.npz")


def test_members_without_the_usual_suffix(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("v", npy_header((2, 2)) + np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(read(tmp_path / "x.npz"), [[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "header",
    [
        b'{"x": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [[1], [1]], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [-1, 1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [1.5, 1], "data_offsets": [0, 6]}}',
        b'{"x": {"dtype": "F32", "shape": [1000000000000, 1000000000000], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": 5, "shape": [1, 1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]}}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
    ],
)
def test_damaged_headers_of_tensors_are_refused(tmp_path, header):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(InputError, match=r"x\.safetensors"):
        open_vectors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("second", [pa.array([[3.0, 4.0]]), pa.array(["text"])])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_two_columns_of_one_name_are_refused(tmp_path, second, suffix):
    data = pa.Table.from_arrays([pa.array([[1.0, 2.0]]), second], names=["v", "v"])
    path = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        pq.write_table(data, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
            writer.write_table(data)
    for options in ({}, {"column": "v"}):
        with pytest.raises(UsageError, match=path.name):
            open_vectors(path, **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"v": [1, ' + "9" * 400 + "]}", "too large for float64.*line 2"),
        ('{"v": [1, ' + "9" * 5000 + "]}", "not JSON.*line 2"),
        ('{"v": ' + "[" * 100_000 + "}", "line 2"),
        ('{"v": [1, 2], "g": "\\ud800"}', "lone surrogate"),
        ('{"v": ' + "[" * 900 + "1" + "]" * 900 + "}", "not a list of numbers.*line 2"),
    ],
    ids=["400 digits", "5000 digits", "deep", "surrogate", "nested"],
)
def test_odd_lines_are_named(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text('{"v": [1, 2], "g": 5}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read(tmp_path / "x.jsonl", group="g")
    (tmp_path / "y.jsonl").write_text(line.replace('"g"', '"v2"').replace('"v"', '"g"', 0) + "\n")
    with pytest.raises(AnisoscopeError, match=r"y\.jsonl"):
        read(tmp_path / "y.jsonl", group="v2")


def test_labels_that_are_not_utf8_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", v=X[:2], g=np.array([b"caf\xe9", b"x"]))
    with pytest.raises(InputError, match="not UTF-8"):
        open_vectors(tmp_path / "x.npz", group="g")


def test_a_name_that_stands_twice_in_a_json_object_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"v": [1, 2]}\n{"v": [3, 4], "v": [5, 6]}\n')
    with pytest.raises(InputError, match=r"line 2[\s\S]*'v' is given twice"):
        read(tmp_path / "x.jsonl")
