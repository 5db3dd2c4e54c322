"""The three architectures join the Auto classes, once, and only when asked."""

from __future__ import annotations

import subprocess
import sys

from transformers import AutoConfig, AutoModel

from anisoscope.models.extra import register


def test_importing_the_registration_does_not_import_torch():
    code = "import sys, anisoscope.models.extra; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_registering_twice_changes_nothing():
    register()
    names = ("character_bert", "manta", "van")
    before = {name: AutoModel._model_mapping[type(AutoConfig.for_model(name))] for name in names}
    register()
    after = {name: AutoModel._model_mapping[type(AutoConfig.for_model(name))] for name in names}
    assert before == after
    assert [kind.__name__ for kind in after.values()] == [
        "CharacterBertModel",
        "MantaForConditionalGeneration",
        "VanModel",
    ]
