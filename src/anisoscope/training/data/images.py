"""Images to classify: a folder with one subfolder per class, or scikit-learn's handwritten digits.

    photos/cat/1.jpg  photos/cat/2.jpg  photos/dog/1.jpg

Every image goes through the image processor that is saved with the checkpoint, so what a model was trained on is what
anything that opens it later will show it. As in `text`, example i of the stream is a function of
(seed, i) alone. Every n-th image of a class (in order of name) is held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import InputError, MissingExtra
from anisoscope.inputs.files import Stamps, check_all, stamp
from anisoscope.inputs.images import upright_rgb
from anisoscope.training.recipe import DIGITS

if TYPE_CHECKING:
    from PIL.Image import Image

    from anisoscope.training.recipe import Recipe

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, slots=True)
class Labelled:
    """An image that is opened when it is needed, and its class."""

    open: Callable[[], Image]
    label: int


@dataclass(frozen=True, slots=True)
class Examples:
    """A map-style dataset of `count` examples; without a seed they come in order, once."""

    pictures: Sequence[Labelled]
    processor: Any
    count: int
    seed: int | None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.seed is None:
            picture = self.pictures[index]
        else:
            epoch, place = divmod(index, len(self.pictures))
            draw = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            picture = self.pictures[draw.permutation(len(self.pictures))[place]]
        pixels = self.processor(picture.open(), return_tensors="np")["pixel_values"][0]  # (3, side, side)
        return {"pixel_values": pixels, "labels": picture.label}


@dataclass(frozen=True, slots=True)
class ImageData:
    """The images of a recipe: processor, training examples by seed, held-out examples."""

    recipe: Recipe
    processor: Any
    pictures: Sequence[Labelled]
    held_out_pictures: Sequence[Labelled]
    classes: int
    sha256: str
    stamps: Stamps

    @classmethod
    def open(cls, recipe: Recipe) -> ImageData:
        from transformers import ViTImageProcessor

        side = {"height": recipe.image_size, "width": recipe.image_size}
        pictures, sha256, stamps = digits() if recipe.data == [DIGITS] else folder_pictures(recipe.data)
        kept, held_out = split(pictures, validation=recipe.validation)
        classes = len({picture.label for picture in pictures})
        return cls(recipe, ViTImageProcessor(size=side), kept, held_out, classes, sha256, stamps)

    @property
    def sizes(self) -> dict[str, int]:
        return {"classes": self.classes}

    def training(self, seed: int) -> Examples:
        return Examples(self.pictures, self.processor, count=self.recipe.steps * self.recipe.batch, seed=seed)

    def held_out(self) -> Examples:
        return Examples(self.held_out_pictures, self.processor, count=len(self.held_out_pictures), seed=None)


def digits() -> tuple[list[Labelled], str, Stamps]:
    """The 1,797 digits of 8 × 8 pixels that scikit-learn carries, and the hash of their pixels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("scikit-learn", needed_for="training on the handwritten digits", extra="dev") from error
    bunch: Any = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    pictures = [
        Labelled(partial(_from_pixels, pixels), int(label)) for pixels, label in zip(grey, bunch.target, strict=True)
    ]
    return pictures, hashlib.sha256(grey.tobytes()).hexdigest(), ()


def folder_pictures(data: Sequence[str]) -> tuple[list[Labelled], str, Stamps]:
    """The images of a folder, by class and name, the hash of names and contents, and the stamps of the files."""
    root = Path(data[0])
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir()) if len(data) == 1 and root.is_dir() else []
    if len(classes) < 2:
        raise InputError(
            "cannot train on these images",
            where=", ".join(data),
            expected="one folder with a subfolder of images per class, at least two",
            do=f"or give `--data {DIGITS}` for scikit-learn's handwritten digits",
        )
    pictures, stamps, digest = [], [], hashlib.sha256()
    for label, folder in enumerate(classes):
        for file in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
            pictures.append(Labelled(partial(_from_file, file), label))
            stamps.append((file, stamp(file)))
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    check_all(stamps)
    return pictures, digest.hexdigest(), stamps


def split(pictures: Sequence[Labelled], *, validation: float) -> tuple[list[Labelled], list[Labelled]]:
    """What is trained on and what is held out: in each class every n-th image, n = 1/validation."""
    kept: list[Labelled] = []
    held_out: list[Labelled] = []
    seen: dict[int, int] = {}
    for picture in pictures:
        seen[picture.label] = seen.get(picture.label, 0) + 1
        (held_out if seen[picture.label] % round(1 / validation) == 0 else kept).append(picture)
    if not held_out:
        raise InputError(
            "too few images to hold any out",
            got=f"{len(pictures)} images, validation = {validation}",
            expected=f"at least {round(1 / validation)} in some class",
        )
    return kept, held_out


def _from_pixels(grey: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(grey).convert("RGB")


def _from_file(path: Path) -> Image:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return upright_rgb(image)
    except (OSError, ValueError) as error:
        raise InputError("cannot read the image", where=path, got=error) from error
