from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from store_servers import S3, Azure, Google, HuggingFace, Store

AnyStore = Store | HuggingFace


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[AnyStore]:
    """One server for the tests of a file; they are skipped where it cannot be started."""
    kind = getattr(request, "param", S3)
    with ExitStack() as open_ones:
        try:
            store = open_ones.enter_context(kind())
        except (FileNotFoundError, TimeoutError) as problem:
            pytest.skip(f"no {kind.__name__} server here: {problem}")
        yield store


@pytest.fixture
def store(running: AnyStore, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> AnyStore:
    """The server, with the environment that a client needs."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    running.forget()
    return running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that ask for a store are run on each."""
    if "store" in metafunc.fixturenames and "s3" not in metafunc.fixturenames:
        metafunc.parametrize("running", [S3, Google, Azure, HuggingFace], indirect=True, ids=["s3", "gs", "az", "hf"])


@pytest.fixture
def s3(store: Store) -> Store:
    return store
