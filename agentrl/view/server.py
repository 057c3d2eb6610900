"""The server of the web page: read-only, on this machine only, for holders of the printed link.

Text of models and tools is not trusted: no response has such text as HTML, and the page loads nothing from other hosts.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from aiohttp import web

from agentrl._util.http_log import server_log
from agentrl.errors import ConfigError
from agentrl.types import JSON
from agentrl.view.answers import PageAnswers
from agentrl.view.export import CSP as EXPORT_CSP
from agentrl.view.sources import Source

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "agentrl_view"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class ViewServer:
    """An HTTP server that shows sources. `start` opens the port, `close` ends the server."""

    def __init__(self, sources: Sequence[Source], *, model: str | None = None, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, 0
        self.token = secrets.token_urlsafe(24)
        self._answers = PageAnswers(sources, model)
        self._worker = ThreadPoolExecutor(1, "agentrl-view")
        self._static = _static()
        self._runner: web.AppRunner | None = None
        self._warming: asyncio.Task[None] | None = None

    @property
    def link(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{host}:{self.port}/?token={self.token}"

    async def start(self, port: int = 0) -> None:
        """Open the port. Raises ConfigError if the port is taken."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/export", self._export)
        app.router.add_get("/image", self._image)
        app.router.add_get("/api/{name}", self._api)
        self._runner = web.AppRunner(app, access_log=None, logger=server_log(f"{__name__}.http"))
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, port)
        try:
            await site.start()
        except OSError as exc:
            await self.close()
            raise ConfigError(
                f"{self.host}:{port} cannot be listened on ({exc.strerror}); give another --port"
            ) from exc
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._warming is not None:
            await self._warming
        self._worker.shutdown(wait=False, cancel_futures=True)

    # What every request passes

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests without the cookie, and requests with a foreign Host header, as another site may bind its
        name to this machine."""
        response: web.StreamResponse | None = self._refusal(request)
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as exc:
                response = web.Response(status=exc.status, text=exc.text)
        response.headers.update(_HEADERS)
        response.headers.setdefault("Content-Security-Policy", CSP)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._known_host(request.host):
            return web.Response(status=403, text="this Host is not served; use the printed link, or ssh -L")
        if request.path == "/" and _same(request.query.get("token", ""), self.token):
            response = web.Response(status=303, headers={"Location": "/"})
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="Strict", path="/")
            return response
        if not _same(request.cookies.get(COOKIE, ""), self.token):
            return web.Response(status=403, text="open the link that agentrl view has printed: it holds the token")
        return None

    def _known_host(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        return port == str(self.port) and name in (*LOOPBACK, self.host)

    # Pages

    async def _index(self, request: web.Request) -> web.Response:
        return self._asset("index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._asset(request.match_info["name"])

    def _asset(self, name: str) -> web.Response:
        if name not in self._static:
            raise web.HTTPNotFound(text="no such file")
        body, kind = self._static[name]
        return web.Response(body=body, content_type=kind, charset="utf-8")

    async def _api(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._answers.names:
            raise web.HTTPNotFound(text="no such question")
        status, body = await self._ask(name, request.query)
        if self._warming is None:  # importing a tokenizer takes a second; the first page does not wait for it
            self._warming = asyncio.create_task(asyncio.to_thread(self._answers.warm))
        return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")

    async def _ask(self, name: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        return await self._work(lambda: _answered(lambda: self._answers.answer(name, query)))

    async def _export(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        try:
            name, page = await self._work(lambda: self._answers.export(query, self._static))
        except ConfigError as exc:
            raise web.HTTPNotFound(text=str(exc)) from exc
        attachment = f"attachment; filename*=UTF-8''{quote(name)}"
        headers = {"Content-Disposition": attachment, "Content-Security-Policy": EXPORT_CSP}
        return web.Response(text=page, content_type="text/html", headers=headers)

    async def _image(self, request: web.Request) -> web.Response:
        """The response with a PNG or JPEG file under its own media type, so that a browser runs no part of it."""
        query = dict(request.query)
        try:
            data, kind = await self._work(lambda: self._answers.image(query))
        except ConfigError as exc:
            raise web.HTTPNotFound(text=str(exc)) from exc
        return web.Response(body=data, content_type=kind, headers={"Content-Security-Policy": EXPORT_CSP})

    async def _work(self, call: Callable[[], T]) -> T:
        """Run `call` in the single worker thread, as readers and tokenizers are not safe for several threads."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)


def _answered(call: Callable[[], JSON]) -> tuple[int, bytes]:
    try:
        return 200, json.dumps(call(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    except ConfigError as exc:
        return 404, json.dumps({"error": " ".join(str(exc).split())}).encode()


def _same(candidate: str, token: str) -> bool:
    return hmac.compare_digest(candidate.encode(), token.encode())


_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def _static() -> dict[str, tuple[bytes, str]]:
    """Name of a file of the web page -> its bytes and media type."""
    files_by_name: dict[str, tuple[bytes, str]] = {}
    for file in files("agentrl.view").joinpath("static").iterdir():
        if (kind := _KINDS.get(Path(file.name).suffix)) is not None:
            files_by_name[file.name] = (file.read_bytes(), kind)
    return files_by_name


def run_view(server: ViewServer, port: int, ready: Callable[[str], Any]) -> None:
    """Serve until Ctrl-C."""

    async def serve() -> None:
        await server.start(port)
        ready(server.link)
        try:
            await asyncio.Event().wait()
        finally:
            await server.close()

    asyncio.run(serve())
