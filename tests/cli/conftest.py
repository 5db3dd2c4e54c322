"""Run a command as the entry point does, in this process: exit code, standard output, standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    from anisoscope.cli.main import main

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["anisoscope", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capfd.readouterr())

    return run


@pytest.fixture
def vectors_file(tmp_path: Path) -> Path:
    """A drifted cloud of 300 vectors in 6 dimensions."""
    path = tmp_path / "x.npy"
    np.save(path, (np.random.default_rng(0).standard_normal((300, 6)) + 1).astype(np.float32))
    return path
