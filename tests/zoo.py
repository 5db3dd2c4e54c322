"""Every architecture of the catalogue, small: the package's own stand-ins under a short name.

import zoo
for name in zoo.NAMES: ...
module = zoo.module("gpt2")
folder = zoo.save("gpt2", tmp_path)
"""

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
    "image_size",
    "modality",
    "module",
    "processor",
    "save",
]
