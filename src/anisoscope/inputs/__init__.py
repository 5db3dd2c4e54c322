"""Text, speech, images and vectors; what is embedded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Clip, Document, Picture, Source, open_places, open_source
    from anisoscope.inputs.speech import resample
    from anisoscope.inputs.vectors.source import VectorBlock, VectorSource, open_vectors

__all__ = [
    "Clip",
    "Document",
    "Picture",
    "Source",
    "VectorBlock",
    "VectorSource",
    "open_places",
    "open_source",
    "open_vectors",
    "resample",
]

_HOME = {"resample": "speech"}
_HOME |= dict.fromkeys(["Clip", "Document", "Picture", "Source", "open_places", "open_source"], "sources")
_HOME |= dict.fromkeys(["VectorBlock", "VectorSource", "open_vectors"], "vectors.source")


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: importing the package costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
