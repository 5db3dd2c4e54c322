"""Small valid files, damaged at random: the right numbers, or an error that names the file; never anything else."""

import io
import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from anisoscope.errors import AnisoscopeError
from anisoscope.inputs.vectors.source import open_vectors

N, D = 12, 3
EXAMPLES = 100
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
GROUPS = [f"g{i // 2}" for i in range(N)]


def saved(write):
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def table():
    return pa.table({"v": pa.array(list(map(list, X.tolist())), pa.list_(pa.float32())), "g": GROUPS})


def ipc(stream, new, **options):
    with new(stream, table().schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table(), max_chunksize=5)


FILES = {
    "x.npy": saved(lambda s: np.save(s, X)),
    "stored.npz": saved(lambda s: np.savez(s, v=X, g=GROUPS)),
    "packed.npz": saved(lambda s: np.savez_compressed(s, v=np.asfortranarray(X), g=GROUPS)),
    "x.safetensors": save({"v": X, "g": np.arange(N)}),
    "x.parquet": saved(lambda s: pq.write_table(table(), s, row_group_size=5, write_page_checksum=True)),
    "file.arrow": saved(lambda s: ipc(s, pa.ipc.new_file)),
    "stream.arrow": saved(lambda s: ipc(s, pa.ipc.new_stream)),
    "zstd.arrow": saved(lambda s: ipc(s, pa.ipc.new_file, compression="zstd")),
    "x.csv": "".join(
        ["a,b,c,g\n", *(",".join([*map(str, x), g]) + "\n" for x, g in zip(X.tolist(), GROUPS, strict=True))]
    ).encode(),
    "x.jsonl": "".join(json.dumps({"v": x, "g": g}) + "\n" for x, g in zip(X.tolist(), GROUPS, strict=True)).encode(),
}
NAMED = FILES.keys() - {"x.npy", "x.csv"}
CHECKED = {"stored.npz", "packed.npz"}  # formats that carry checksums of all that matters

WHOLE = {"x.npy", "x.safetensors", "x.parquet", "file.arrow", "zstd.arrow"}  # formats that know where they end


@st.composite
def damage(draw, content):
    """(kind, damaged bytes)."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "double", "zero"]))
    at = draw(st.integers(0, len(content) - 1))
    length = draw(st.integers(1, 40))
    if kind == "flip":
        return kind, content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if kind == "cut":
        return kind, content[:at]
    if kind == "insert":
        return kind, content[:at] + draw(st.binary(min_size=1, max_size=length)) + content[at:]
    if kind == "double":
        return kind, content[: at + length] + content[at:]
    return kind, content[:at] + bytes(length) + content[at + length :]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("group", [None, "g"])
def test_damaged_files_give_the_right_numbers_or_an_error(tmp_path, name, group):
    if name == "x.npy" and group:
        pytest.skip("has no groups")
    path = tmp_path / name
    group = "g" if name == "x.csv" else group

    @settings(max_examples=EXAMPLES, deadline=5_000, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged=damage(FILES[name]))
    def check(damaged):
        kind, content = damaged
        path.write_bytes(content)
        started, refusal, blocks, notes = time.monotonic(), None, [], []
        try:
            source = open_vectors(path, group=group, **({"column": "v"} if group and name in NAMED else {}))
            blocks, notes = list(source.blocks(5)), source.notes
        except AnisoscopeError as problem:
            refusal = str(problem)
        assert time.monotonic() - started < 4
        if refusal is not None:
            assert name in refusal
            return
        x = np.concatenate([block.x for block in blocks])
        assert x.ndim == 2
        if content == FILES[name] or name in CHECKED:
            np.testing.assert_array_equal(x, X)
        elif kind == "cut" and name in WHOLE:
            raise AssertionError("a file that is cut off was taken for whole")
        elif kind == "cut":
            np.testing.assert_array_equal(x[: len(x) - 1], X[: len(x) - 1])
            assert notes or content.endswith((b"\n", b"}"))

    check()
