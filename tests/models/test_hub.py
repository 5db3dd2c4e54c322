"""The way to the hub, with the real client against a small hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zoo
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import open_model
from models.hub import Fault, Hub, flipped, shorter, truncated

Open = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.save("gpt2", tmp_path_factory.mktemp("early"), seed=1)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = zoo.save("gpt2", tmp_path_factory.mktemp("late"), seed=2)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"not wanted")
    (folder / "tf_model.h5").write_bytes(b"not wanted")
    (folder / "own.py").write_text("raise SystemExit('this must not run')")
    return folder


@pytest.fixture(scope="module")
def hub(early: Path, late: Path) -> Iterator[Hub]:
    with Hub() as served:
        served.publish("owner/name", late)
        served.publish("owner/name", early, revision="step1000")
        yield served


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def start(url: str, cache: Path) -> Iterator[Open]:
    """A process that opens models through the hub at `url`."""
    settings = {"HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(Path(__file__).with_name("hub_client.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **settings}, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def open_there(where: str, **options: Any) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"where": where, **options}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield open_there
        process.stdin.close()
        process.wait()


@pytest.fixture(scope="module")
def client(hub: Hub, cache: Path) -> Iterator[Open]:
    yield from start(hub.url, cache)


@pytest.fixture
def fault(hub: Hub) -> Iterator[Callable[[Fault], None]]:
    def make(fault: Fault) -> None:
        hub.fault = fault

    yield make
    hub.fault = None


def test_a_model_opens_by_its_id(hub: Hub, client: Open, late: Path) -> None:
    opened = client("owner/name")
    assert opened["hash"] == module_fingerprint(open_model(late).module)
    assert opened["revision"] is None
    assert opened["notes"] == [f"commit {hub.revisions['owner/name']['main']}"]
    fetched = {line.rpartition("/")[2] for line in hub.asked if line.startswith("GET owner")}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert not fetched & {"model.onnx", "tf_model.h5", "own.py"}


def test_two_revisions_are_two_models(client: Open, early: Path) -> None:
    opened = client("owner/name", revision="step1000")
    assert opened["revision"] == "step1000"
    assert opened["hash"] == module_fingerprint(open_model(early).module)
    assert opened["hash"] != client("owner/name")["hash"]


def test_a_commit_is_a_revision(hub: Hub, client: Open) -> None:
    commit = hub.revisions["owner/name"]["step1000"]
    assert client("owner/name", revision=commit)["hash"] == client("owner/name", revision="step1000")["hash"]


def test_a_second_opening_downloads_nothing(hub: Hub, client: Open) -> None:
    client("owner/name")
    hub.asked.clear()
    client("owner/name")
    assert not [line for line in hub.asked if line.startswith("GET owner")]


def test_a_branch_that_moved_is_followed(hub: Hub, client: Open, early: Path, late: Path) -> None:
    hub.publish("owner/moving", early)
    before = client("owner/moving")["hash"]
    hub.publish("owner/moving", late)
    assert client("owner/moving")["hash"] != before


def test_a_missing_revision(client: Open) -> None:
    refused = client("owner/name", revision="step7")
    assert refused["error"] == "ModelError"
    assert "no such revision" in refused["message"]
    assert "step7" in refused["message"]


def test_a_missing_model_gets_a_suggestion(client: Open) -> None:
    refused = client("bert-base-uncasd")
    assert refused["error"] == "ModelError"
    assert "did you mean bert-base-uncased?" in refused["message"]
    assert "no such model" in client("nobody/nothing")["message"]


@pytest.mark.parametrize(
    ("kind", "file", "message"),
    [
        (truncated, "model.safetensors", "broke off"),
        (shorter, "model.safetensors", "broke off"),
        (shorter, "config.json", "broke off"),
        (flipped, "model.safetensors", "not what the hub holds"),
        (flipped, "config.json", "not what the hub holds"),
    ],
)
def test_a_damaged_download_is_refused_and_nothing_of_it_used(
    kind: Callable[[str], Fault], file: str, message: str, hub: Hub, client: Open, fault: Any, early: Path
) -> None:
    name = f"owner/{kind.__name__}-{file.partition('.')[0]}"
    hub.publish(name, early)
    fault(kind(file))
    refused = client(name)
    assert refused["error"] == "ModelError"
    assert message in refused["message"]
    hub.fault = None
    assert client(name)["hash"] == module_fingerprint(open_model(early).module)


def test_a_damaged_file_is_not_left_in_the_cache(hub: Hub, client: Open, fault: Any, cache: Path, early: Path) -> None:
    hub.publish("owner/damaged", early)
    fault(flipped("model.safetensors"))
    assert "not what the hub holds" in client("owner/damaged")["message"]
    left = cache / "hub" / "models--owner--damaged"
    assert not list(left.rglob("model.safetensors"))
    sizes = {file.stat().st_size for file in (left / "blobs").iterdir()}
    assert (early / "model.safetensors").stat().st_size not in sizes


def test_code_of_the_repository_comes_only_when_allowed(hub: Hub, client: Open, tmp_path: Path) -> None:
    folder = zoo.save("gpt2", tmp_path)
    (folder / "own.py").write_text(
        "from transformers import GPT2Config, GPT2Model\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2Model):\n    config_class = OwnConfig\n"
    )
    written = json.loads((folder / "config.json").read_text())
    places = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**written, "model_type": "own", "auto_map": places}))
    hub.publish("owner/own", folder)
    assert "code of its own repository" in client("owner/own")["message"]
    assert not [line for line in hub.asked if line.endswith("own.py") and "owner/own" in line]
    assert client("owner/own", trust_remote_code=True)["family"] == "own"


def fetch_offline(name: str, home: Path) -> Path:
    """What a process finds that was told to stay off the network."""
    code = f"from anisoscope.models.hub import fetch; print(fetch({name!r}))"
    settings = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_without_network_the_cache_is_used(hub: Hub, client: Open, fault: Any, cache: Path, late: Path) -> None:
    """The hub stops, so this test is the last; what was opened opens again, what was not is refused with what to do."""
    first = client("owner/name")
    older = client("owner/name", revision="step1000")
    hub.publish("owner/half", late)
    fault(shorter("model.safetensors"))
    assert "broke off" in client("owner/half")["message"]
    hub.stop()
    assert client("owner/name") == first
    assert client("owner/name", revision="step1000") == older
    for refused in (client("owner/name", revision="step2000"), client("owner/other"), client("owner/half")):
        assert "cannot be reached and the model is not in the cache" in refused["message"]
    assert fetch_offline("owner/name", cache).name == first["notes"][0].removeprefix("commit ")
