"""Small valid files of text, sound and images, damaged at random: items, or a reason why not; never anything else."""

import wave

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anisoscope.errors import AnisoscopeError
from anisoscope.inputs.sources import open_source
from fuzz.seeds import SOURCES, check_item

EXAMPLES = 60
FILES = [
    pytest.param(name, modality, content, id=f"{number} {name}")
    for name, (modality, contents) in SOURCES.items()
    for number, content in enumerate(contents)
]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "modality", "content"), FILES)
def test_damaged_files_give_items_or_a_reason(tmp_path, name, modality, content):
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
