"""Images from a folder or scikit-learn's digits train a ViT and a convnet."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

from anisoscope.errors import InputError, MissingExtra
from anisoscope.training.data.images import ImageData, digits, folder_pictures, split
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import read_log

SMALL = {"layers": 2, "hidden": 32, "heads": 2, "image_size": 8, "patch": 2, "batch": 32, "warmup": 10}


@pytest.fixture
def photos(tmp_path):
    """Two classes told apart by their colour."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("blue", "red")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = draw.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            pixels[..., 2 - 2 * label] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number:02}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("arch", ["vit", "convnet"])
def test_digits_are_learned(arch: str, tmp_path) -> None:
    pytest.importorskip("sklearn")
    torch.set_num_threads(1)
    recipe = Recipe(arch=arch, data=["digits"], steps=160, learning_rate=3e-3, first_checkpoint=80, **SMALL)
    checkpoints = pretrain(recipe, tmp_path)
    log = read_log(tmp_path, 0)
    # wide margins: how far a short training comes depends on the processor's rounding
    assert log[-1]["validation_loss"] < 0.85 * log[0]["validation_loss"]
    assert log[-1]["validation_accuracy"] > 0.25  # chance is 0.1
    folder = checkpoints[-1][2]
    pixels = AutoImageProcessor.from_pretrained(folder)(Image.new("RGB", (30, 30)), return_tensors="pt")
    assert pixels["pixel_values"].shape == (1, 3, 8, 8)
    AutoModel.from_pretrained(folder)(**pixels)


def test_a_folder_of_classes(photos) -> None:
    recipe = Recipe(arch="vit", data=[str(photos)], steps=3, validation=0.1, **SMALL)
    data = ImageData.open(recipe)
    assert data.sizes == {"classes": 2}
    assert len(data.pictures) == 36
    assert [data.held_out()[i]["labels"] for i in range(4)] == [0, 0, 1, 1]
    example = data.held_out()[3]["pixel_values"]
    assert example.shape == (3, 8, 8)
    assert example[0].mean() > example[2].mean()  # red
    stream = data.training(0)
    assert len(stream) == 96
    assert (stream[50]["pixel_values"] == stream[50]["pixel_values"]).all()
    assert len({stream[i]["pixel_values"].tobytes() for i in range(36)}) == 36  # each image once


def test_the_hash_sees_contents_and_not_where_the_folder_lies(photos, tmp_path) -> None:
    _, before, _ = folder_pictures([str(photos)])
    photos.rename(tmp_path / "moved")
    _, moved, _ = folder_pictures([str(tmp_path / "moved")])
    (tmp_path / "moved" / "red" / "00.png").write_bytes((tmp_path / "moved" / "red" / "01.png").read_bytes())
    _, changed, _ = folder_pictures([str(tmp_path / "moved")])
    assert before == moved != changed


def test_images_are_read_as_they_are_measured(photos) -> None:
    """Turned as EXIF says, 16 bits scaled to 8: what a model was trained on is what it is shown later."""
    from anisoscope.inputs.images import open_images

    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(np.arange(120, dtype=np.uint8).reshape(10, 12)).save(photos / "red/00.png", exif=turned)
    Image.fromarray((np.arange(120, dtype=np.uint16) * 500).reshape(10, 12)).save(photos / "red/01.png")
    pictures, _, _ = folder_pictures([str(photos)])
    for number, shown in enumerate(open_images(photos / "red")):
        assert np.array_equal(np.asarray(pictures[20 + number].open()), np.asarray(shown.image))


def test_what_cannot_be_used_is_named(photos, tmp_path, monkeypatch) -> None:
    for data in ([str(photos / "red")], [str(tmp_path / "absent")], [str(photos), str(photos)]):
        with pytest.raises(InputError, match="subfolder"):
            folder_pictures(data)
    with pytest.raises(InputError, match="hold any out"):
        split(folder_pictures([str(photos)])[0], validation=0.01)
    (photos / "red" / "00.png").write_bytes(b"no image")
    pictures, _, _ = folder_pictures([str(photos)])
    with pytest.raises(InputError, match=r"00\.png"):
        pictures[20].open()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match="scikit-learn"):
        digits()
