"""Real object stores on 127.0.0.1, one class each, for tests that read the same objects from all of them.

    with Azure() as store:                              # `store.environment` is what a client needs
        url = store.put("x.npy", data)                  # az://bucket/x.npy
        store.unwell = 2                                # the next two requests are answered 503

| class | server | from |
|---|---|---|
| `S3` | s3rver | npm, run by the deno that the check brings along |
| `Azure` | Azurite, Microsoft's emulator | npm, likewise |
| `Google` | gcp-storage-emulator | PyPI, in the `dev` extra |
| `HuggingFace` | `models/hub.py` of these tests | here: there is no published one |

Requests to the first three pass through a small proxy, which counts them and can fail on demand. It is a process of its
own (this file, run as a script), since pyarrow waits for Google with the interpreter's lock held.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from unittest.mock import patch

from models.hub import Hub

BUCKET = "bucket"
TOOLS = Path(__file__).parents[1] / ".tools"
Request = tuple[str, ...]  # method, path, range


def find_deno() -> str:
    """The deno of the check, or one on the path."""
    found = next((str(file) for file in sorted(TOOLS.glob("deno-*/bin/deno"))), None) or shutil.which("deno")
    if found is None:
        raise FileNotFoundError("no deno")
    return found


class Store:
    """A server and the proxy before it."""

    root: ClassVar[str]

    def __init__(self) -> None:
        self.port, self._proxy_port, self._made = _free_port(), _free_port(), False

    def settings(self, endpoint: str) -> dict[str, str]:
        """What a client has to know to find the store at this address."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """What starts the server."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        return self.settings(f"http://127.0.0.1:{self._proxy_port}")

    @property
    def requests(self) -> list[Request]:
        """What came through since it was last forgotten."""
        return [tuple(one) for one in self._ask("/-/requests")]

    def forget(self) -> None:
        self._ask("/-/forget")

    @property
    def unwell(self) -> int:
        """How many of the next requests are answered 503."""
        return self._ask("/-/unwell")

    @unwell.setter
    def unwell(self, times: int) -> None:
        self._ask(f"/-/unwell/{times}")

    def _ask(self, what: str) -> Any:
        return json.loads(_pass_on(self._proxy_port, "GET", what)[2])

    def __enter__(self) -> Self:
        settings = {"DENO_DIR": str(TOOLS / "cache"), "DENO_NO_UPDATE_CHECK": "1", **os.environ}
        proxy = [sys.executable, __file__, str(self._proxy_port), str(self.port)]
        quiet = subprocess.DEVNULL
        self._processes = [
            subprocess.Popen(one, env=settings, stdout=quiet, stderr=quiet) for one in (self.command(), proxy)
        ]
        if not all(_is_up(port, self._processes, 60) for port in (self.port, self._proxy_port)):
            self.__exit__()
            raise TimeoutError("the server did not start: its package is not here")
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()

    def put(self, name: str, data: bytes) -> str:
        """Store an object; its URL."""
        from anisoscope.inputs.stores.clients import client

        url = f"{self.root}/{name}"
        with patch.dict(os.environ, self.settings(f"http://127.0.0.1:{self.port}")):
            system, path = client(url)
        if not self._made:
            system.create_dir(BUCKET)  # once: to the second time the server under deno answers in half
            self._made = True
        with system.open_output_stream(path, compression=None) as out:
            out.write(data)
        return url


class S3(Store):
    root = f"s3://{BUCKET}"
    key = "S3RVER"

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()

    def settings(self, endpoint: str) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.key, "AWS_EC2_METADATA_DISABLED": "true"}
        return {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}

    def command(self) -> list[str]:
        where = ["-d", self._folder.name, "-a", "127.0.0.1", "-p", str(self.port), "--configure-bucket", BUCKET]
        options = ["--silent", "--no-vhost-buckets", "--allow-mismatched-signatures"]
        return [find_deno(), "run", "--allow-all", "npm:s3rver@3.7.1", *where, *options]

    def put(self, name: str, data: bytes) -> str:
        """In one request, so that the ETag is the MD5."""
        status, _, _ = _pass_on(self.port, "PUT", f"/{BUCKET}/{name}", data, {"Content-Length": str(len(data))})
        assert status == 200, status
        return f"{self.root}/{name}"


class Azure(Store):
    root = f"az://{BUCKET}"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own

    def settings(self, endpoint: str) -> dict[str, str]:
        account = {"AZURE_STORAGE_ACCOUNT": "devstoreaccount1", "AZURE_STORAGE_KEY": self.key}
        return {**account, "AZURE_STORAGE_ENDPOINT": endpoint}

    def command(self) -> list[str]:
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence"]
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        package = "npm:azurite@3.36.0/azurite-blob"
        return [find_deno(), "run", "--allow-all", "--no-lock", "--cached-only", package, *where, *options]


class Google(Store):
    root = f"gs://{BUCKET}"

    def settings(self, endpoint: str) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": endpoint}

    def command(self) -> list[str]:
        if importlib.util.find_spec("gcp_storage_emulator") is None:
            raise FileNotFoundError("no gcp-storage-emulator")
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--default-bucket", BUCKET]
        return [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory", "--quiet", *where]


class HuggingFace:
    """A data set of the hub, under the same few words."""

    root = f"hf://datasets/owner/{BUCKET}"
    repository = f"datasets/owner/{BUCKET}"

    def __init__(self) -> None:
        self.hub, self.unwell = Hub(), 0
        self.files: dict[str, bytes] = {}

    @property
    def requests(self) -> list[Request]:
        return self.hub.requests

    def forget(self) -> None:
        self.hub.requests.clear()

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.hub.url, "HF_HUB_OFFLINE": "0"}

    def __enter__(self) -> Self:
        self.hub.__enter__()
        self.hub.mood = lambda asked: self._mood()
        return self

    def __exit__(self, *error: object) -> None:
        self.hub.stop()

    def _mood(self) -> int | None:
        if self.unwell <= 0:
            return None
        self.unwell -= 1
        return 503

    def put(self, name: str, data: bytes) -> str:
        self.files[name] = data
        self.hub.commit(self.repository, self.files)
        return f"{self.root}/{name}"


class _Proxy(BaseHTTPRequestHandler):
    """One request, passed on to the server at `port`; below `/-/` what the tests want to know."""

    port: ClassVar[int]
    unwell: ClassVar[int] = 0
    requests: ClassVar[list[Request]] = []
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one packet

    def do_GET(self) -> None:
        if self.path.startswith("/-/"):
            self._answer(200, [], json.dumps(self._told(self.path.split("/")[2:])).encode())
            return
        ranged = self.headers.get("Range") or self.headers.get("x-ms-range") or ""
        self.requests.append((self.command, self.path, ranged))
        if self.unwell > 0:
            _Proxy.unwell -= 1
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        # s3rver encrypts the token of a listing that goes on, with a cipher that deno lacks: none ever does
        path = self.path.replace("max-keys=1&", "max-keys=1000&")
        self._answer(*_pass_on(self.port, self.command, path, b"", dict(self.headers.items())))

    do_HEAD = do_GET

    def _told(self, words: list[str]) -> Any:
        if words == ["forget"]:
            self.requests.clear()
        elif words[:1] == ["unwell"]:
            _Proxy.unwell = int(words[1]) if words[1:] else _Proxy.unwell
            return _Proxy.unwell
        return self.requests

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        kept = [(name, value) for name, value in headers if name.lower() not in ("transfer-encoding", "connection")]
        if not any(name.lower() == "content-length" for name, _ in kept):
            kept.append(("Content-Length", str(len(content))))
        for name, value in kept:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()


def _pass_on(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body or None, headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.getheaders(), content


def _is_up(port: int, processes: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    _Proxy.port = int(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Proxy).serve_forever()
