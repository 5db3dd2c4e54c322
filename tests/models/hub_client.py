"""Opens models for `test_hub` in a process of its own: the client reads HF_ENDPOINT and HF_HOME when it is imported.

Each line of standard input is a JSON object of arguments for `open_model`; each answer is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import open_model


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        opened = open_model(request.pop("where"), **request)
    except AnisoscopeError as error:
        return {"error": type(error).__name__, "message": str(error)}
    found = {"name": opened.name, "revision": opened.revision, "notes": opened.notes, "family": opened.family}
    return found | {"hash": module_fingerprint(opened.module)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
