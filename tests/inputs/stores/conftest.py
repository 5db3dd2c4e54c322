from __future__ import annotations

from collections.abc import Iterator

import pytest

from s3_server import Server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a file; they are skipped where it cannot be started."""
    try:
        server = Server(tmp_path_factory.mktemp("s3")).__enter__()
    except (FileNotFoundError, TimeoutError) as problem:
        pytest.skip(f"no S3 server here: {problem}")
    yield server
    server.__exit__()


@pytest.fixture
def s3(running: Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The server, with the environment that a client needs."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    running.requests.clear()
    return running
