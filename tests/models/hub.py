"""A small hub on 127.0.0.1 that the real `huggingface_hub` client talks to: repositories, revisions, faults on demand.

    with Hub() as hub:
        hub.publish("owner/name", folder)                          # branch main
        hub.publish("owner/name", other, revision="step1000")      # another branch
        hub.fault = truncated("model.safetensors")                 # from now on

It answers what the client asks: the description of a repository at a revision, its tree, and its files or parts of
them, with the headers that the client reads (X-Repo-Commit, ETag, X-Linked-Etag and X-Linked-Size of large files,
X-Error-Code). A data set is the repository `datasets/owner/name`.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin")  # stored as LFS: named by sha256


@dataclass(frozen=True)
class Body:
    """What a download sends: the length that it announces, and the bytes that follow."""

    announced: int
    content: bytes


Fault = Callable[[str, bytes], Body | None]


def truncated(name: str) -> Fault:
    """The connection closes after half of the file, although its whole length was announced."""
    return lambda file, content: Body(len(content), content[: len(content) // 2]) if file == name else None


def shorter(name: str) -> Fault:
    """Half of the file arrives as if it were all."""
    return lambda file, content: Body(len(content) // 2, content[: len(content) // 2]) if file == name else None


def flipped(name: str) -> Fault:
    """One bit in the middle of the file is wrong; its length is right."""

    def flip(file: str, content: bytes) -> Body | None:
        if file != name:
            return None
        middle = len(content) // 2
        return Body(len(content), content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])

    return flip


def _git_sha(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """The server, running in a thread between `with` and its end."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.revisions: dict[str, dict[str, str]] = {}
        self.fault: Fault | None = None
        self.mood: Callable[[str], int | float | None] = lambda asked: None  # a status instead, or seconds of silence
        self.asked: list[str] = []
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.connections: list[socket.socket] = []

    def publish(self, repository: str, folder: Path, *, revision: str = "main") -> str:
        """Put the files of a folder on a branch; the commit that it makes."""
        files = {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
        return self.commit(repository, files, revision=revision)

    def commit(self, repository: str, files: Mapping[str, bytes], *, revision: str = "main") -> str:
        """Make these the files of a branch; the commit."""
        listing = json.dumps({name: _git_sha(content) for name, content in files.items()} | {"": repository})
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.revisions.setdefault(repository, {})[revision] = commit
        return commit

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No more answers: the network is gone, for connections that are open too."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self.connections:
            with suppress(OSError):  # closed by the client already
                connection.shutdown(socket.SHUT_RDWR)

    def find(self, repository: str, revision: str) -> str | None:
        """The commit of a branch, or the commit itself."""
        known = self.revisions.get(repository, {})
        return known.get(revision, revision if known and revision in self.commits else None)


class _Handler(BaseHTTPRequestHandler):
    """One request to the hub of the class."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.hub.connections.append(self.connection)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append(f"{self.command} {path}")
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        mood = self.hub.mood(self.hub.asked[-1])
        if isinstance(mood, float):
            time.sleep(mood)
        elif mood is not None:
            self.send_response(mood)
            self._send(Body(0, b""))
            return
        parts = path.split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), parts[4:])
        elif parts[:2] == ["api", "datasets"]:
            self._describe("/".join(parts[1:4]), parts[4:])
        elif "resolve" in parts[1:4]:
            at = parts.index("resolve")
            self._file("/".join(parts[:at]), parts[at + 1], "/".join(parts[at + 2 :]))
        else:
            self._missing("RepoNotFound")

    def _describe(self, repository: str, rest: list[str]) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        commit = self._commit(repository, revision)
        if commit is None:
            return
        files = self.hub.commits[commit]
        siblings = [{"rfilename": name} for name in files]
        if rest[:1] == ["tree"]:
            self._tree(files, "/".join(rest[2:]), recursive="recursive=true" in self.path.lower())
        else:
            self._json({"id": repository, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _tree(self, files: Mapping[str, bytes], folder: str, *, recursive: bool) -> None:
        """The files and folders under a folder; those of its own level alone unless `recursive`."""
        prefix = f"{folder}/" if folder else ""
        under = {name: content for name, content in files.items() if name.startswith(prefix)}
        if not under:
            self._missing("EntryNotFound")
            return
        folders = {str(above) for name in under for above in PurePosixPath(name).parents if str(above) != "."}
        found = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]
        found += [_entry(name, content) for name, content in under.items()]
        inside = [one for one in found if one["path"].startswith(prefix)]
        self._json([one for one in inside if recursive or "/" not in one["path"].removeprefix(prefix)])

    def _file(self, repository: str, revision: str, name: str) -> None:
        commit = self._commit(repository, revision)
        if commit is None:
            return
        content = self.hub.commits[commit].get(name)
        if content is None:
            self._missing("EntryNotFound")
            return
        body = None if self.hub.fault is None or self.command == "HEAD" else self.hub.fault(name, content)
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if ranged and body is None:
            content_range = f"bytes {ranged[1]}-{ranged[2]}/{len(content)}"
            part = content[int(ranged[1]) : int(ranged[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", content_range)
            self._send(Body(len(part), part))
            return
        body = body or Body(len(content), content)
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_git_sha(content)}"')
        if name.endswith(LARGE):
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(content)))
        self._send(body)

    def _commit(self, repository: str, revision: str) -> str | None:
        commit = self.hub.find(repository, revision)
        if commit is None:
            self._missing("RevisionNotFound" if repository in self.hub.revisions else "RepoNotFound")
        return commit

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self._send(Body(len(content), content))

    def _missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self._send(Body(0, b""))

    def _send(self, body: Body) -> None:
        self.send_header("Content-Length", str(body.announced))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body.content)
        if len(body.content) < body.announced:
            self.close_connection = True


def _entry(name: str, content: bytes) -> dict[str, Any]:
    """One file of a tree, as the hub describes it."""
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _git_sha(content)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry
