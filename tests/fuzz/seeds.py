"""Small valid files of every kind that is read: what a fuzzer starts from, and what has to come out of them."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from PIL import Image
from safetensors.numpy import save

N, D = 8, 3
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
GROUPS = [f"g{i // 2}" for i in range(N)]
TEXTS = ["One text, größer.", "", 'Another: "quoted"\nof two lines.', "\u2028 Third"]


def saved(write: Callable[[Any], Any]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _table(**columns: Any) -> pa.Table:
    return pa.table(columns or {"v": list(X), "g": GROUPS})


def _ipc(stream: Any, new: Any, table: pa.Table, **options: Any) -> None:
    with new(stream, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=5)


def _sound(form: str, **options: Any) -> bytes:
    wave = (0.1 * np.random.default_rng(0).standard_normal(200)).astype(np.float32)
    return saved(lambda stream: soundfile.write(stream, wave, 8000, format=form, **options))


def _picture(form: str, **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return saved(lambda stream: Image.fromarray(pixels).save(stream, format=form, **options))


def _rows(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def check_item(item: Any) -> None:
    """What any document, clip or picture is, out of whatever file."""
    from anisoscope.inputs.sources import Clip, Document

    if isinstance(item, Clip):
        assert np.isfinite(item.wave).all()
        assert np.abs(item.wave).max(initial=0) <= 1e4
    elif isinstance(item, Document):
        assert item.text.strip() or (item.ids and min(item.ids) >= 0)
    else:
        assert item.image.mode == "RGB"
    assert item.content()


GGUF_TENSORS = {
    "token_embd": (4, 8),
    **dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (8,)),
    **{f"blk.0.attn_{part}": (8, 8) for part in ("q", "k", "v", "output")},
    **dict.fromkeys(("blk.0.ffn_gate", "blk.0.ffn_up"), (16, 8)),
    "blk.0.ffn_down": (8, 16),
}


def gguf() -> bytes:
    """A small Llama, whole: keys and values, the tensors of one block."""
    import gguf as library

    with tempfile.TemporaryDirectory() as folder:
        writer = library.GGUFWriter(Path(folder) / "x.gguf", "llama")
        writer.add_block_count(1)
        writer.add_context_length(16)
        writer.add_embedding_length(8)
        writer.add_feed_forward_length(16)
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(4)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "ab", "c"])
        writer.add_token_merges(["a b"])
        for name, shape in GGUF_TENSORS.items():
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / "x.gguf").read_bytes()


PLANS = [
    'command = "vectors"\n[settings]\nfiles = ["x.npy"]\nsample = 100\ncolumn = "v"\n',
    'command = "measure"\n[settings]\nmodels = ["gpt2"]\ndata = ["t.txt"]\nlength = 5.5\nseed = 3\n',
    'command = "block"\nin_memory = []\n[settings]\narch = ["bert"]\nnorms = [0.0, 1e3]\n',
    'command = "variants"\n[settings]\ndata = ["t"]\nseeds = [0]\nplan = {a = {hidden = 8}}\n',
]
RECIPE = 'arch = "bert"\ndata = ["t"]\nsteps = 4\nseeds = [0, 1]\nlearning_rate = 1e-3\n'
SERIES = '[[checkpoints]]\nstep = 0\nmodel = "a"\nseed = 1\n[[checkpoints]]\nstep = 8\nmodel = "b"\nrevision = "main"\n'
CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 4, "n_positions": 8}'
STATE = save({"rest.n": np.arange(3)})
HEADER = {
    "unit": [0, 1, 0, [[0, 2]]],
    "identity": {"model": "a"},
    "done": 3,
    "finished": False,
    "about": {},
    "notes": [],
    "state": "s",
    "sha256": hashlib.sha256(STATE).hexdigest(),
}
VECTORS: dict[str, list[bytes]] = {
    ".npy": [
        saved(lambda s: np.save(s, X)),
        saved(lambda s: np.save(s, np.asfortranarray(X.astype(">f8")))),
        saved(lambda s: np.save(s, (X * 9).astype(np.int16))),
    ],
    ".npz": [saved(lambda s: np.savez(s, v=X, g=GROUPS)), saved(lambda s: np.savez_compressed(s, v=X))],
    ".safetensors": [save({"v": X, "g": np.arange(N)}), save({"v": X.astype(np.float16)})],
    ".parquet": [
        saved(lambda s: pq.write_table(_table(), s, row_group_size=5)),
        saved(lambda s: pq.write_table(_table(a=X[:, 0], b=X[:, 1]), s, compression="zstd")),
    ],
    ".arrow": [
        saved(lambda s: _ipc(s, pa.ipc.new_file, _table())),
        saved(lambda s: _ipc(s, pa.ipc.new_stream, _table())),
        saved(lambda s: _ipc(s, pa.ipc.new_file, _table(), compression="zstd")),
    ],
    ".csv": [b"a,b,g\n1,2.5,x\n-3e4,nan,y\n", b"1;2\n3;4\n", b"\xef\xbb\xbfid\tx\ty\n1\t0.5\t1\n2\t1\t2\n"],
    ".jsonl": [_rows([{"v": row, "g": "a"} for row in X.tolist()]), _rows(X.tolist())],
}
SOURCES: dict[str, tuple[str, list[bytes]]] = {
    "text.txt": ("text", [" = One = \r\n\r\n größer \n\n = Two = \n".encode(), b"a\n\nb\n"]),
    "text.jsonl": ("text", [_rows([{"text": text} for text in TEXTS]), _rows([{"input_ids": [1, 2]}])]),
    "text.csv": ("text", [b'id,text\n1,"a, b"\n2,c\n']),
    "text.parquet": ("text", [saved(lambda s: pq.write_table(_table(text=TEXTS), s))]),
    "text.arrow": ("text", [saved(lambda s: _ipc(s, pa.ipc.new_file, _table(input_ids=[[1, 2], [3]])))]),
    "wave.wav": ("speech", [_sound("WAV"), _sound("WAV", subtype="FLOAT"), _sound("WAV", subtype="PCM_U8")]),
    "wave.flac": ("speech", [_sound("FLAC")]),
    "wave.ogg": ("speech", [_sound("OGG")]),
    "image.png": ("vision", [_picture("PNG")]),
    "image.jpg": ("vision", [_picture("JPEG")]),
    "image.gif": ("vision", [_picture("GIF")]),
    "image.webp": ("vision", [_picture("WEBP")]),
    "image.tiff": ("vision", [_picture("TIFF"), _picture("TIFF", compression="tiff_lzw")]),
    "image.bmp": ("vision", [_picture("BMP")]),
}
