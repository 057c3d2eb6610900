"""A registry of images on loopback, by Docker's HTTP API version 2."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry:
    """`login` is USER:PASSWORD, if the registry asks for one."""

    def __init__(self, login: str = "") -> None:
        self.login = login
        self.blobs, self.manifests = dict[str, bytes](), dict[tuple[str, str], bytes]()

    def add(self, repository: str, content: dict[str, bytes], tag: str = "latest") -> None:
        """An image of one layer with these files."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for name, data in content.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        layer = gzip.compress(raw.getvalue(), 1, mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(raw.getvalue())]},
            }
        ).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config), "digest": self._put(config)},
            "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": self._put(layer)}],
        }
        data = json.dumps(manifest).encode()
        for name in (tag, _digest(data)):
            self.manifests[repository, name] = data

    def _put(self, data: bytes) -> str:
        self.blobs[_digest(data)] = data
        return _digest(data)

    def __enter__(self) -> Registry:
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry, path = self.registry, self.path.removeprefix("/v2/")
        expected = base64.b64encode(registry.login.encode()).decode()
        if registry.login and self.headers.get("Authorization") != f"Basic {expected}":
            self._reply(401, b'{"errors": [{"code": "UNAUTHORIZED"}]}', {"WWW-Authenticate": 'Basic realm="tests"'})
        elif not path:
            self._reply(200, b"{}")
        elif "/manifests/" in path:
            self._manifest(*path.split("/manifests/"))
        else:
            self._blob(path.rpartition("/")[2])

    do_HEAD = do_GET

    def _manifest(self, repository: str, name: str) -> None:
        data = self.registry.manifests.get((repository, name))
        if data is None:
            self._reply(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')
            return
        self._reply(200, data, {"Content-Type": _MANIFEST, "Docker-Content-Digest": _digest(data)})

    def _blob(self, digest: str) -> None:
        self._reply(200, self.registry.blobs[digest], {"Content-Type": "application/octet-stream"})

    def _reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None: ...


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
