import shutil

import numpy as np
import pytest
import soundfile

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.sources import Clip, open_source
from anisoscope.inputs.speech import resample

RATE = 16_000
TIME = np.arange(RATE) / RATE
TONE = (0.5 * np.sin(2 * np.pi * 440 * TIME)).astype(np.float32)


def only(where):
    (clip,) = open_source(where, "speech")
    return clip


@pytest.mark.parametrize(("suffix", "error"), [("wav", 2**-15), ("flac", 2**-15), ("ogg", 0.05), ("mp3", 0.05)])
def test_each_format_gives_back_the_tone(tmp_path, suffix, error):
    path = tmp_path / f"tone.{suffix}"
    soundfile.write(path, TONE, RATE)
    clip = only(path)
    assert (clip.key, clip.rate, clip.wave.dtype, clip.wave.ndim) == (path.name, RATE, np.float32, 1)
    assert len(clip.wave) == len(TONE)
    middle = slice(2000, -2000)  # lossy formats ring at the ends
    assert np.abs(clip.wave - TONE)[middle].max() < error


def test_stereo_is_averaged(tmp_path):
    soundfile.write(tmp_path / "x.wav", np.stack([TONE, np.zeros_like(TONE)], axis=1), 44_100, subtype="FLOAT")
    clip = only(tmp_path / "x.wav")
    assert clip.rate == 44_100
    np.testing.assert_array_equal(clip.wave, TONE / 2)


def test_silence_is_kept_and_noted(tmp_path):
    soundfile.write(tmp_path / "quiet.wav", np.zeros(100), RATE)
    source = open_source(tmp_path, "speech")
    assert [len(clip.wave) for clip in source] == [100]
    assert source.notes == [("quiet.wav", "silence: every sample is zero")]


def test_a_folder_is_read_in_order_and_what_cannot_be_is_listed(tmp_path):
    (tmp_path / "deep").mkdir()
    soundfile.write(tmp_path / "deep" / "b.flac", TONE, RATE)
    soundfile.write(tmp_path / "a.wav", TONE, RATE)
    soundfile.write(tmp_path / "nan.wav", np.where(TIME < 0.5, np.nan, 0.1), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "none.wav", np.zeros(0), RATE)
    (tmp_path / "fake.mp3").write_bytes(b"no music")
    (tmp_path / "empty.ogg").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not audio, not looked at")
    source = open_source(tmp_path, "speech")
    assert source.count == 6
    assert [clip.key for clip in source] == ["a.wav", "deep/b.flac"]
    reasons = dict(source.unreadable)
    assert sorted(reasons) == ["empty.ogg", "fake.mp3", "nan.wav", "none.wav"]
    assert reasons["nan.wav"] == "holds samples that are NaN or infinite"
    assert reasons["none.wav"] == "no samples"


def test_a_recording_that_ends_early_is_never_taken_for_whole(tmp_path):
    rng = np.random.default_rng(0)
    for suffix in ("wav", "flac", "ogg", "mp3", "aiff"):
        path = tmp_path / f"cut.{suffix}"
        soundfile.write(path, 0.1 * rng.standard_normal(RATE), RATE)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    soundfile.write(tmp_path / "whole.wav", TONE, RATE)
    source = open_source(tmp_path, "speech")
    list(source)
    said = {name for name, _ in source.unreadable + source.notes}
    assert said == {"cut.wav", "cut.flac", "cut.ogg", "cut.mp3", "cut.aiff"}


def test_a_wav_from_a_stream_does_not_know_its_length_and_is_whole(tmp_path):
    soundfile.write(tmp_path / "x.wav", TONE, RATE)
    content = bytearray((tmp_path / "x.wav").read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = content[4:8] = b"\xff" * 4
    (tmp_path / "x.wav").write_bytes(content)
    source = open_source(tmp_path, "speech")
    assert [len(clip.wave) for clip in source] == [len(TONE)]
    assert source.notes == []


def test_nothing_readable_is_an_error(tmp_path):
    (tmp_path / "fake.wav").write_bytes(b"no music")
    with pytest.raises(InputError, match=r"no speech could be read.*\n.*fake\.wav"):
        open_source(tmp_path, "speech")


def test_lists_of_paths_and_of_clips(tmp_path):
    for name in ("b.wav", "a.wav"):
        soundfile.write(tmp_path / name, TONE, RATE)
    paths = [str(tmp_path / "b.wav"), tmp_path / "a.wav"]
    assert [clip.key for clip in open_source(paths, "speech")] == ["b.wav", "a.wav"]
    clips = [Clip("x", TONE, RATE), Clip("y", -TONE, RATE)]
    assert list(open_source(clips, "speech")) == clips
    with pytest.raises(UsageError, match="not speech"):
        open_source([TONE], "speech")
    with pytest.raises(InputError, match="no speech to measure"):
        open_source([], "speech")


@pytest.mark.parametrize("wave", [TONE.astype(np.float64), TONE[:, None], (TONE * 100).astype(np.int16)])
def test_a_clip_is_mono_and_float32(wave):
    with pytest.raises(UsageError, match="mono float32"):
        Clip("x", wave, RATE)


def test_the_fingerprint_follows_contents_and_names_not_the_place(tmp_path):
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
    soundfile.write(tmp_path / "one" / "x.wav", TONE, RATE)
    shutil.copy(tmp_path / "one" / "x.wav", tmp_path / "two" / "x.wav")
    soundfile.write(tmp_path / "three" / "x.wav", -TONE, RATE)
    one, two, three = (open_source(tmp_path / name, "speech").fingerprint() for name in ("one", "two", "three"))
    assert one == two != three


@pytest.mark.parametrize(("rate", "to"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_000)])
def test_resampling_keeps_a_tone_and_its_length(rate, to):
    seconds = 2.0
    tone = np.sin(2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate).astype(np.float32)
    got = resample(tone, rate, to)
    expected = np.sin(2 * np.pi * 440 * np.arange(round(to * seconds)) / to)
    assert got.dtype == np.float32
    assert len(got) == len(expected)
    assert np.abs(got - expected)[to // 10 : -to // 10].max() < 2e-3


def test_resampling_removes_what_the_new_rate_cannot_hold():
    tone = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(resample(tone, 48_000, 16_000))[1600:-1600].max() < 2e-3


def test_the_same_rate_is_the_same_wave():
    assert resample(TONE, RATE, RATE) is TONE
    with pytest.raises(UsageError, match="positive"):
        resample(TONE, RATE, 0)


@pytest.mark.parametrize("loud", [1e20, -1e20, 20_000.0, 1.1e4])
def test_absurdly_loud_samples_are_refused(tmp_path, loud):
    soundfile.write(tmp_path / "loud.wav", np.where(TIME < 0.5, loud, 0.1), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "good.wav", 5 * TONE, RATE, subtype="FLOAT")
    source = open_source(tmp_path, "speech")
    assert [clip.key for clip in source] == ["good.wav"]
    assert source.unreadable == [("loud.wav", f"holds samples of {abs(loud):.3g}, where full scale is 1")]
    with pytest.raises(InputError, match="full scale is 1"):
        Clip("x", np.full(10, loud, np.float32), RATE)


def test_integers_are_scaled_to_one_whatever_their_width(tmp_path):
    for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32"):
        soundfile.write(tmp_path / "x.wav", TONE, RATE, subtype=subtype)
        assert np.abs(only(tmp_path / "x.wav").wave - TONE).max() < 2**-6


def test_a_cut_recording_says_how_much_there_is(tmp_path):
    for suffix, subtype in (("wav", "PCM_16"), ("aiff", "PCM_24"), ("wav", "FLOAT")):
        path = tmp_path / f"x.{suffix}"
        soundfile.write(path, np.tile(TONE, 3), RATE, subtype=subtype)
        whole = path.stat().st_size
        path.write_bytes(path.read_bytes()[: round(whole * 0.4)])
        source = open_source(path, "speech")
        (clip,) = source
        assert len(clip.wave) == pytest.approx(1.2 * RATE, rel=0.01)
        assert source.notes == [(path.name, "cut off: 1.2 s of 3.0 s")]
