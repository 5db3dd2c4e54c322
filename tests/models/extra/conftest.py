"""The extra architectures are registered, and run on one thread: recorded numbers are exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anisoscope.models.extra.register import register
from fixtures import recorded


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    register()
    with recorded.one_thread():
        yield
