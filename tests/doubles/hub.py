"""What huggingface_hub asks of the Hub when it downloads a model, answered on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def listen_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT, and the absence of HF_HUB_OFFLINE, do in a new process."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )


def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is lost."""
    listen_at("http://127.0.0.1:9", monkeypatch)


@dataclass
class FakeHub:
    """A Hub of some models. `add` gives it one."""

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Of each model, by path. Every model has one commit, which `main` and `v1` name."""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and X-Error-Code by model, for its files; under `api/MODEL` for what the API says of it."""
    cut: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Files whose next download ends in the middle; what is called then."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""

    def add(self, name: str, folder: Path, **more: bytes) -> None:
        found = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files[name] = found | {file.replace("__", "/"): content for file, content in more.items()}

    @property
    def fetched(self) -> list[str]:
        """Paths of the downloaded files, within their models."""
        return [line.split(f"{COMMIT}/")[1] for line in self.asked if line.startswith("GET") and COMMIT in line]

    @contextmanager
    def serve(self) -> Iterator[FakeHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = unquote(self.path).strip("/")
        self.hub.asked.append(f"{self.command} {path}")
        if path.startswith("api/models/"):
            self._describe(*path.removeprefix("api/models/").partition("/revision/")[::2])
        else:
            name, _, rest = path.partition("/resolve/")
            revision, _, file = rest.partition("/")
            self._send_file(name, revision, file, body=body)

    def _describe(self, name: str, revision: str) -> None:
        if name not in self.hub.files or f"api/{name}" in self.hub.refused:
            self._refuse(*self.hub.refused.get(f"api/{name}", (401, "RepoNotFound")))
        elif revision not in ("", "main", "v1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            siblings = [{"rfilename": file} for file in sorted(self.hub.files[name])]
            self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def _send_file(self, name: str, revision: str, file: str, *, body: bool) -> None:
        if name in self.hub.refused:
            self._refuse(*self.hub.refused[name])
        elif revision not in ("main", "v1", COMMIT) or file not in self.hub.files.get(name, {}):
            self._refuse(404, "EntryNotFound")
        else:
            content = self.hub.files[name][file]
            etag = hashlib.sha256(content).hexdigest()
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if self.headers["Range"] else 0
            size = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
            then = self.hub.cut.pop(file, None) if body else None
            self._send(
                206 if start else 200,
                content[start:],
                {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, **size},
                sent=len(content) // 2 if then else (None if body else 0),
            )
            if then:
                self.wfile.flush()
                then()
                self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})

    def _send(
        self, status: int, content: bytes, headers: Mapping[str, str] | None = None, sent: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])
