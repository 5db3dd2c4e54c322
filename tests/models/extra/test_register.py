"""The three architectures join the Auto classes, once, and only when asked."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from transformers import AutoConfig, AutoModel

from anisoscope.models.extra.characterbert import CharacterBertModel
from anisoscope.models.extra.manta import MantaForConditionalGeneration
from anisoscope.models.extra.register import register
from anisoscope.models.extra.van import VanModel


def test_importing_the_registration_does_not_import_torch():
    code = "import sys, anisoscope.models.extra.register; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_registering_twice_changes_nothing():
    register()
    names = ("character_bert", "manta", "van")
    mapping: Any = AutoModel._model_mapping
    before = [mapping[type(AutoConfig.for_model(name))] for name in names]
    register()
    after = [mapping[type(AutoConfig.for_model(name))] for name in names]
    assert before == after == [CharacterBertModel, MantaForConditionalGeneration, VanModel]
