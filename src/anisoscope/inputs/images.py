"""Images: any format that Pillow opens, made upright, 8-bit RGB.

Orientation follows EXIF. Transparency is laid over white. Grey values of 16 bits are scaled to 8 (v / 257), where
Pillow's own conversion may clip them; floating-point images are read as [0, 1], or as [0, 255] when they go beyond 1;
grey values outside of these ranges have no known scale, and the file is unreadable.
Of an animation the first frame counts, and a note says so. A damaged or truncated file is unreadable: half a picture is
never measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.inputs.files import FoundFile, find_files, name_of
from anisoscope.inputs.sources import FileSource, MemorySource, Modality, Picture, Source, Unreadable

if TYPE_CHECKING:
    from PIL.Image import Image


def open_images(where: str | Path | Sequence[str | Path] | Sequence[Picture]) -> Source[Picture]:
    """A file, folder or glob of images, a list of those, or a list of `Picture`."""
    places = [where] if isinstance(where, str | Path) else list(where)
    if places and all(isinstance(place, str | Path) for place in places):
        paths = cast("list[str | Path]", places)
        return ImageFiles(find_files(paths, suffixes=suffixes(), what="image"), name=name_of(paths))
    if not all(isinstance(place, Picture) for place in places):
        got = ", ".join(sorted({type(place).__name__ for place in places}))
        raise UsageError("not images", got=f"a list with {got}", expected="paths, or `Picture` objects")
    return MemorySource(cast("list[Picture]", places), modality="vision", name="list")


def suffixes() -> tuple[str, ...]:
    """The file suffixes that this Pillow can open."""
    from PIL import Image

    return tuple(sorted(suffix for suffix, form in Image.registered_extensions().items() if form in Image.OPEN))


class ImageFiles(FileSource[Picture]):
    """One picture per file, its key the file's."""

    modality: Modality = "vision"

    def read(self, file: FoundFile) -> Iterator[Picture]:
        from PIL import Image

        try:
            with file.path.open("rb") as stream, Image.open(stream) as image:
                image.load()
                picture = Picture(file.key, upright_rgb(image))
                frames = getattr(image, "n_frames", 1)
        # Each of Pillow's decoders fails in its own way: OSError, SyntaxError, struct.error, DecompressionBombError…
        except Exception as problem:
            raise Unreadable(f"{type(problem).__name__}: {problem}") from problem
        if frames > 1:
            self.note(file, f"the first of {frames} frames")
        yield picture


def upright_rgb(image: Image) -> Image:
    """The image turned as EXIF says, over white, as 8-bit RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(grey: np.ndarray) -> np.ndarray:
    """Deep grey values (H, W) as bytes."""
    if not np.isfinite(grey).all():
        raise ValueError("pixels that are NaN or infinite")
    full = 65_535 if grey.dtype.kind != "f" else 1 if grey.max() <= 1 else 255
    if grey.min() < 0 or grey.max() > full:
        raise ValueError(f"grey values from {grey.min():g} to {grey.max():g}, where {full} is white")
    return np.rint(grey * (255 / full)).astype(np.uint8)
