"""Small valid files of text, sound and images, damaged at random: items, or a reason why not; never anything else."""

import io
import json
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from anisoscope.errors import AnisoscopeError
from anisoscope.inputs.sources import Clip, Document, open_source

EXAMPLES = 60
RNG = np.random.default_rng(0)
SOUND = (0.1 * RNG.standard_normal(800)).astype(np.float32)
PIXELS = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
TEXTS = ["One text, größer.", "", 'Another: "quoted"\nof two lines.', "\u2028 Third"]
TOKENS = pa.table({"input_ids": [[1, 2, 3], [4], [], [5, 6]]})


def saved(write):
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def sound(form, **options):
    return saved(lambda stream: soundfile.write(stream, SOUND, 8000, format=form, **options))


def picture(form):
    return saved(lambda stream: Image.fromarray(PIXELS).save(stream, format=form))


def arrow(stream):
    with pa.ipc.new_file(stream, TOKENS.schema) as writer:
        writer.write_table(TOKENS)


FILES = {
    "x.txt": ("text", " = One = \r\n\r\n größer \n\n = Two = \n".encode()),
    "x.jsonl": ("text", "\n".join(json.dumps({"text": text}) for text in TEXTS).encode()),
    "x.csv": ("text", b'id,text\n1,"a, b"\n2,c\n'),
    "x.parquet": ("text", saved(lambda stream: pq.write_table(pa.table({"text": TEXTS}), stream))),
    "ids.parquet": ("text", saved(lambda stream: pq.write_table(TOKENS, stream))),
    "ids.arrow": ("text", saved(arrow)),
    "x.wav": ("speech", sound("WAV")),
    "float.wav": ("speech", sound("WAV", subtype="FLOAT")),
    "x.flac": ("speech", sound("FLAC")),
    "x.ogg": ("speech", sound("OGG")),
    "x.png": ("vision", picture("PNG")),
    "x.jpg": ("vision", picture("JPEG")),
    "x.gif": ("vision", picture("GIF")),
    "x.webp": ("vision", picture("WEBP")),
    "x.tiff": ("vision", picture("TIFF")),
}


@st.composite
def damage(draw, content):
    kind = draw(st.sampled_from(["flip", "cut", "insert", "double"]))
    at = draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=20)) + content[at:]
    return content[: at + 30] + content[at:]


def check_item(item):
    if isinstance(item, Clip):
        assert np.isfinite(item.wave).all()
        assert np.abs(item.wave).max() <= 1e4
    elif isinstance(item, Document):
        assert item.text.strip() or (item.ids and min(item.ids) >= 0)
    else:
        assert item.image.mode == "RGB"
    assert item.content()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_give_items_or_a_reason(tmp_path, name):
    modality, content = FILES[name]

    @settings(max_examples=EXAMPLES, deadline=5_000, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged=damage(content))
    def check(damaged):
        (tmp_path / name).write_bytes(damaged)
        refusal = None
        try:
            for item in open_source(tmp_path / name, modality):
                check_item(item)
        except AnisoscopeError as problem:
            refusal = str(problem)
        assert refusal is None or name in refusal

    check()


@pytest.mark.parametrize("kept", range(50, 1600, 150))
def test_a_wav_that_is_cut_anywhere_is_read_to_its_end_and_says_so(tmp_path, kept):
    with wave.open(str(tmp_path / "x.wav"), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(8000)
        stream.writeframes(np.arange(1, 801, dtype="<i2").tobytes())
    content = (tmp_path / "x.wav").read_bytes()
    (tmp_path / "x.wav").write_bytes(content[:kept])
    source = open_source(tmp_path / "x.wav", "speech")
    (clip,) = source
    np.testing.assert_array_equal(np.rint(clip.wave * 32768), np.arange(1, len(clip.wave) + 1))
    assert len(clip.wave) == (kept - 44) // 2
    assert source.notes == [("x.wav", f"cut off: {len(clip.wave) / 8000:.1f} s of 0.1 s")]
