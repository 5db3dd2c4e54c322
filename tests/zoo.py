"""Every architecture of the catalogue, small: the package's own stand-ins under a short name.

import zoo
for name in zoo.NAMES: ...
module = zoo.module("gpt2")
folder = zoo.save("gpt2", tmp_path)
"""

import json
from pathlib import Path
from typing import Any

from anisoscope.models.stand_ins.configs import HEADS, LAYERS, D
from anisoscope.models.stand_ins.specimens import (
    NAMES,
    SPEECH,
    TEXT,
    VISION,
    config,
    image_size,
    modality,
    module,
    processor,
    save,
)

__all__ = [
    "HEADS",
    "LAYERS",
    "NAMES",
    "SPEECH",
    "TEXT",
    "VISION",
    "D",
    "config",
    "edit_config",
    "image_size",
    "modality",
    "module",
    "processor",
    "save",
    "sizes",
]


def sizes(hidden: int = 16, layers: int = 2, heads: int = 2, inner: int = 32, **more: Any) -> dict[str, Any]:
    """The sizes of a small model, by the names that most configs have."""
    named = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**named, "intermediate_size": inner, **more}


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of a checkpoint's config; None takes a field out."""
    file = folder / "config.json"
    written = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in written.items() if value is not None}))
