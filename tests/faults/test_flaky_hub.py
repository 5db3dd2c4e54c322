"""A hub that answers late, with errors or with something else: asked again, or refused in words; never believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zoo
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import open_model
from models.hub import Body, Hub
from models.test_hub import start

Open = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.save("gpt2", tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as served:
        yield served


@pytest.fixture(scope="module")
def client(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
        patched.setenv("HF_HUB_ETAG_TIMEOUT", "1")
        yield from start(hub.url, tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def afterwards(hub: Hub) -> Iterator[None]:
    yield
    hub.mood, hub.fault = lambda asked: None, None


def sometimes(mood: float, where: str, times: int) -> Callable[[str], int | float | None]:
    """This mood at the first so many requests whose words hold `where`."""
    seen: list[str] = []

    def of(asked: str) -> int | float | None:
        if where in asked and len(seen) < times:
            seen.append(asked)
            return mood
        return None

    return of


@pytest.mark.parametrize("where", ["GET owner", "HEAD owner"])
@pytest.mark.parametrize("mood", [503, 429, 2.0], ids=["503", "429", "silence"])
def test_a_hub_that_recovers_is_asked_again(
    where: str, mood: float, hub: Hub, client: Open, folder: Path, request: pytest.FixtureRequest
) -> None:
    name = f"owner/again-{abs(hash(request.node.name)) % 10**8}"
    hub.publish(name, folder)
    hub.mood = sometimes(mood, where.replace("owner", name), 1)
    first = client(name)
    if "error" in first:  # the client gave up at once: then the error says so, and the next try succeeds
        assert first["error"] == "ModelError"
        assert "try again" in first["message"] or "connect once" in first["message"]
    assert client(name)["hash"] == module_fingerprint(open_model(folder).module)


@pytest.mark.parametrize("mood", [500, 502, 504], ids=str)
def test_a_hub_that_stays_broken_is_named(mood: int, hub: Hub, client: Open, folder: Path) -> None:
    hub.publish(f"owner/broken-{mood}", folder)
    hub.mood = sometimes(mood, f"owner/broken-{mood}", 10**6)
    refused = client(f"owner/broken-{mood}")
    assert refused["error"] == "ModelError"
    assert str(mood) in refused["message"]
    assert "not in the cache" in refused["message"]


def test_content_that_changes_between_two_files_is_not_mixed(
    hub: Hub, client: Open, folder: Path, tmp_path: Path
) -> None:
    """The branch moves in the middle of a download: all files are of one commit."""
    other = zoo.save("gpt2", tmp_path / "other", seed=2)
    before = hub.publish("owner/moves", folder)

    def move(file: str, content: bytes) -> Body | None:
        if file == "config.json":
            hub.publish("owner/moves", other)
        return None

    hub.fault = move
    opened = client("owner/moves")
    assert opened["notes"] == [f"commit {before}"]
    assert opened["hash"] == module_fingerprint(open_model(folder).module)


def test_a_page_of_html_instead_of_weights(hub: Hub, client: Open, folder: Path) -> None:
    """As a portal of a hotel answers: 200, of another length and content."""
    hub.publish("owner/portal", folder)
    page = b"<html>please log in</html>"
    hub.fault = lambda file, content: Body(len(page), page)
    refused = client("owner/portal")
    assert refused["error"] == "ModelError"
    hub.fault = None
    assert client("owner/portal")["hash"] == module_fingerprint(open_model(folder).module)
