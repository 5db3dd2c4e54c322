import shutil

import numpy as np
import pytest
from PIL import Image

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.sources import Picture, open_source

ORIENTATION = 0x0112
HALVES = np.zeros((4, 6, 3), dtype=np.uint8)  # the left half red, one blue pixel top left
HALVES[:, :3] = (255, 0, 0)
HALVES[0, 0] = (0, 0, 255)


def only(where):
    (picture,) = open_source(where, "vision")
    assert picture.image.mode == "RGB"
    return np.asarray(picture.image)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "gif", "webp"])
def test_lossless_formats_give_back_the_pixels(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(HALVES).save(path, **({"lossless": True} if suffix == "webp" else {}))
    np.testing.assert_array_equal(only(path), HALVES)


def test_jpeg_is_close(tmp_path):
    flat = np.full((16, 16, 3), (10, 200, 90), dtype=np.uint8)
    Image.fromarray(flat).save(tmp_path / "x.JPG", quality=95)
    assert np.abs(only(tmp_path).astype(int) - flat).max() <= 3


TURNED = {  # what a camera stored, for each orientation, when the scene was HALVES
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(np.ascontiguousarray(TURNED[orientation](HALVES))).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(only(tmp_path / "x.png"), HALVES)


def test_transparency_is_laid_over_white(tmp_path):
    rgba = np.zeros((1, 3, 4), dtype=np.uint8)
    rgba[0, :, 3] = (0, 128, 255)
    Image.fromarray(rgba).save(tmp_path / "x.png")
    np.testing.assert_array_equal(only(tmp_path / "x.png")[0, :, 0], [255, 127, 0])


def test_palettes_and_grey_with_transparency(tmp_path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "opaque.png")
    np.testing.assert_array_equal(only(tmp_path / "opaque.png"), [[[255, 0, 0], [0, 255, 0]]])
    palette.save(tmp_path / "clear.png", transparency=1)
    np.testing.assert_array_equal(only(tmp_path / "clear.png"), [[[255, 0, 0], [255, 255, 255]]])
    Image.merge("LA", [Image.new("L", (1, 1), 40), Image.new("L", (1, 1), 0)]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(only(tmp_path / "grey.png"), [[[255] * 3]])


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    deep = np.array([[0, 257, 256 * 128, 65_535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(only(tmp_path / f"x.{suffix}")[0, :, 1], [0, 1, 128, 255])


def test_deep_grey_where_zero_is_white_and_where_one_value_is_transparent(tmp_path):
    grey = np.random.default_rng(0).integers(0, 65_536, (6, 5), dtype=np.uint16)
    straight = np.repeat(np.rint(grey / 257)[..., None], 3, axis=2)
    Image.fromarray(grey).save(tmp_path / "negative.tiff", tiffinfo={262: 0})
    np.testing.assert_array_equal(only(tmp_path / "negative.tiff"), 255 - straight)
    Image.fromarray(grey).save(tmp_path / "hole.png", transparency=int(grey[2, 3]))
    straight[2, 3] = 255
    np.testing.assert_array_equal(only(tmp_path / "hole.png"), straight)


def test_floating_point_images(tmp_path):
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(tmp_path / "unit.tiff")
    np.testing.assert_array_equal(only(tmp_path / "unit.tiff")[0, :, 0], [0, 128, 255])
    Image.fromarray(np.array([[0.0, 0.5, 200.0, 255.0]], dtype=np.float32)).save(tmp_path / "bytes.tiff")
    np.testing.assert_array_equal(only(tmp_path / "bytes.tiff")[0, :, 0], [0, 0, 200, 255])


@pytest.mark.parametrize("grey", [[0.0, 300.0], [-1.0, 1.0], [0, 70_000], [-5, 9]])
def test_grey_values_of_no_known_scale_are_not_clipped_in_silence(tmp_path, grey):
    kind = np.float32 if isinstance(grey[0], float) else np.int32
    Image.fromarray(np.array([grey], dtype=kind)).save(tmp_path / "x.tiff")
    with pytest.raises(InputError, match="grey values from"):
        only(tmp_path / "x.tiff")


@pytest.mark.parametrize("mode", ["1", "L", "CMYK"])
def test_other_modes_become_the_rgb_that_pillow_makes_of_them(tmp_path, mode):
    image = Image.fromarray(HALVES).convert(mode)
    image.save(tmp_path / "x.tiff")
    np.testing.assert_array_equal(only(tmp_path / "x.tiff"), np.asarray(image.convert("RGB")))


def test_of_an_animation_the_first_frame_counts(tmp_path):
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(only(tmp_path / "x.gif")[0, 0], [255, 0, 0])


def test_damaged_and_truncated_images_are_listed(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("a.png", "b.jpg", "c.webp", "d.tiff", "good.png"):
        Image.fromarray(noise).save(tmp_path / name)
    for name in ("a.png", "b.jpg", "c.webp", "d.tiff"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    (tmp_path / "e.png").write_bytes(b"")
    (tmp_path / "f.jpg").write_text("no image")
    Image.fromarray(np.full((2, 2), np.nan, dtype=np.float32)).save(tmp_path / "g.tiff")
    (tmp_path / "readme.txt").write_text("not an image, not looked at")
    source = open_source(tmp_path, "vision")
    assert [picture.key for picture in source] == ["good.png"]
    reasons = dict(source.unreadable)
    assert sorted(reasons) == ["a.png", "b.jpg", "c.webp", "d.tiff", "e.png", "f.jpg", "g.tiff"]
    assert "truncated" in reasons["b.jpg"]
    assert "NaN" in reasons["g.tiff"]


def test_an_image_too_large_to_be_honest_is_listed(tmp_path, monkeypatch):
    Image.fromarray(HALVES).save(tmp_path / "bomb.png")
    Image.new("RGB", (1, 1)).save(tmp_path / "good.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    source = open_source(tmp_path, "vision")
    assert [picture.key for picture in source] == ["good.png"]
    assert "DecompressionBomb" in source.unreadable[0][1]


def test_nothing_readable_is_an_error(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"no image could be read.*\n.*x\.png"):
        open_source(tmp_path, "vision")


def test_lists_of_paths_and_of_pictures(tmp_path):
    Image.fromarray(HALVES).save(tmp_path / "x.png")
    assert [p.key for p in open_source([str(tmp_path / "x.png")], "vision")] == ["x.png"]
    pictures = [Picture("a", Image.fromarray(HALVES))]
    assert list(open_source(pictures, "vision")) == pictures
    with pytest.raises(UsageError, match="not images"):
        open_source([HALVES], "vision")


def test_the_fingerprint_follows_contents_not_the_place(tmp_path):
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
    Image.fromarray(HALVES).save(tmp_path / "one" / "x.png")
    shutil.copy(tmp_path / "one" / "x.png", tmp_path / "two" / "x.png")
    Image.fromarray(255 - HALVES).save(tmp_path / "three" / "x.png")
    one, two, three = (open_source(tmp_path / name, "vision").fingerprint() for name in ("one", "two", "three"))
    assert one == two != three


def test_an_animation_is_noted_and_a_still_picture_is_not(tmp_path):
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue", "green")]
    for suffix in ("gif", "webp", "png", "tiff"):
        frames[0].save(tmp_path / f"moving.{suffix}", save_all=True, append_images=frames[1:])
        frames[0].save(tmp_path / f"still.{suffix}")
    source = open_source(tmp_path, "vision")
    assert {np.asarray(picture.image)[0, 0, 0] > 250 for picture in source} == {True}
    assert source.notes == [(f"moving.{s}", "the first of 3 frames") for s in ("gif", "png", "tiff", "webp")]


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b""))
    Image.new("RGB", (1, 1)).save(tmp_path / "good.png")
    source = open_source(tmp_path, "vision")
    assert [picture.key for picture in source] == ["good.png"]
    assert "DecompressionBomb" in source.unreadable[0][1]
