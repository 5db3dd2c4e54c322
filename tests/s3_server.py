"""A real S3-compatible server on 127.0.0.1: `s3rver` of npm, run by the deno that the check brings along.

    with Server(folder) as server:                      # `server.environment` is what a client needs
        server.put("bucket/x.npy", data)
        server.unwell = 2                               # the next two requests are answered 503 SlowDown

Requests pass through a small proxy, which counts them and can fail on demand.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

PACKAGE = "npm:s3rver@3.7.1"
BUCKET = "bucket"
KEY = "S3RVER"
TOOLS = Path(__file__).parents[1] / ".tools"


def find_deno() -> str | None:
    """The deno of the check, or one on the path."""
    return next((str(file) for file in sorted(TOOLS.glob("deno-*/bin/deno"))), None) or shutil.which("deno")


class Server:
    """The server and the proxy before it. `requests` lists method, path and range of what came through."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.unwell, self.requests = folder, 0, list[tuple[str, str, str]]()
        self.port = _free_port()
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def environment(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY, "AWS_EC2_METADATA_DISABLED": "true"}
        return {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}

    def __enter__(self) -> Self:
        deno = find_deno()
        if deno is None:
            raise FileNotFoundError("deno")
        command = [deno, "run", "--allow-all", PACKAGE, "-d", str(self.folder), "-a", "127.0.0.1", "-p", str(self.port)]
        environment = {"DENO_DIR": str(TOOLS / "cache"), "DENO_NO_UPDATE_CHECK": "1", **os.environ}
        self._process = subprocess.Popen(
            [*command, "--silent", "--no-vhost-buckets", "--allow-mismatched-signatures", "--configure-bucket", BUCKET],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        if not self._is_up(60):
            self.__exit__()
            raise TimeoutError("the server did not start: its package is not here")
        return self

    def __exit__(self, *error: object) -> None:
        self._proxy.shutdown()
        self._process.terminate()
        self._process.wait()

    def _is_up(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return True
        return False

    def put(self, name: str, data: bytes) -> str:
        """Store an object; its URL."""
        status, _, _ = self.pass_on("PUT", f"/{BUCKET}/{name}", data, {"Content-Length": str(len(data))})
        assert status == 200, status
        return f"s3://{BUCKET}/{name}"

    def pass_on(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet

        def do_GET(self) -> None:
            server.requests.append((self.command, self.path, self.headers.get("Range", "")))
            if server.unwell > 0:
                server.unwell -= 1
                self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                return
            # s3rver encrypts the token of a listing that goes on, with a cipher that deno lacks: none ever does
            path = self.path.replace("max-keys=1&", "max-keys=1000&")
            self._answer(*server.pass_on(self.command, path, b"", dict(self.headers.items())))

        do_HEAD = do_GET

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

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
