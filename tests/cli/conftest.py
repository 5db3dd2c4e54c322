"""What the tests of commands ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cases


@pytest.fixture
def command(command_line: Callable[..., cases.Ended]) -> Callable[..., cases.Ended]:
    return command_line


@pytest.fixture
def vectors_file(tmp_path: Path) -> Path:
    """A drifted cloud of 300 vectors in 6 dimensions."""
    path = tmp_path / "x.npy"
    np.save(path, (np.random.default_rng(0).standard_normal((300, 6)) + 1).astype(np.float32))
    return path
