"""A stand-in for the service around E2B's machines: python -m tests.sandbox.doubles.e2b. It prints its address.

The requests come from the official client, which also reads the answers; what runs in a machine is E2B's own `envd`
(`guest.py`). Ours are only the life of machines (create, list, remove, extend, pause, resume, fork, snapshot), as E2B's
OpenAPI document and AgentENV's describe it, and the proxy by the headers `E2b-Sandbox-*`. POST /test makes it
misbehave.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import aiohttp
from aiohttp import web

from tests.sandbox.e2b.guest import Guest
from tests.sandbox.e2b.running import KEY

ENVD = "0.6.13"
_DROPPED = ("host", "connection", "transfer-encoding", "content-length", "keep-alive")
_uids = itertools.count(200_000)


class Machine:
    def __init__(self, template: str, metadata: dict[str, str], body: dict, folder: Path, uid: int) -> None:
        self.id = "i" + secrets.token_hex(9)
        self.template, self.metadata, self.body = template, metadata, body
        self.token, self.state, self.started = secrets.token_hex(16), "running", time.time()
        self.guest = Guest(folder / self.id, uid, self.token)
        self.until, self.timer = 0.0, None

    def made(self) -> dict:
        return self._both() | {"envdAccessToken": self.token}

    def listed(self) -> dict:
        size = {"cpuCount": 1, "memoryMB": 512, "diskSizeMB": 512}
        times = {"startedAt": _iso(self.started), "endAt": _iso(self.until)}
        return self._both() | size | times | {"state": self.state, "metadata": self.metadata}

    def _both(self) -> dict:
        return {"templateID": self.template, "sandboxID": self.id, "clientID": "here", "envdVersion": ENVD}


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder, self.machines, self.snapshots = folder, {}, {}
        self.busy = self.lost = self.broken = self.dies = self.slow = 0
        self.snapshotting = 1
        self.extended, self.bodies = [], []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30, middlewares=[self.gate])
        for version in ("", "/v2"):  # the client uses either, by its version
            app.router.add_post(f"{version}/sandboxes", self.create)
            app.router.add_get(f"{version}/sandboxes", self.list)
            app.router.add_post(f"{version}/sandboxes/{{id}}/connect", self.resume)
        app.router.add_get("/sandboxes/{id}", self.about)
        app.router.add_delete("/sandboxes/{id}", self.remove)
        for name in ("timeout", "pause", "fork", "snapshots"):
            app.router.add_post(f"/sandboxes/{{id}}/{name}", getattr(self, name.replace("snapshots", "snapshot")))
        app.router.add_get("/snapshots", self.list_snapshots)
        app.router.add_delete("/templates/{id:.*}", self.remove_snapshot)
        app.router.add_post("/test", self.test)
        app.router.add_route("*", "/{path:.*}", self.proxy)
        return app

    @web.middleware
    async def gate(self, request, handler):
        if "E2b-Sandbox-Id" in request.headers:
            return await self.proxy(request)
        if request.path != "/test":
            if "snapshots" in request.path and not self.snapshotting:
                return _error(404, "no such route")
            if request.headers.get("X-API-Key") != KEY:
                return _error(401, "no such key")
            if self.busy:
                self.busy -= 1
                return _error(429, "too many requests")
        return await handler(request)

    async def create(self, request):
        body = await request.json()
        name = _bare(body["templateID"])
        if name == "no-such-template" or (name.startswith("agentrl-") and name not in self.snapshots):
            return _error(404, f"template {body['templateID']!r} not found")
        kept = self.snapshots.get(name)
        machine = await self._made(name, body.get("metadata") or {}, body, kept and kept[1])
        if kept:
            await machine.guest.fill(kept[0])
        if self.lost:
            self.lost -= 1
            request.transport.abort()
        return web.json_response(machine.made(), status=201)

    async def _made(self, template, metadata, body, uid=None) -> Machine:
        machine = Machine(template, metadata, body, self.folder, uid or next(_uids))
        await machine.guest.start()
        self.machines[machine.id] = machine
        self._live(machine, body.get("timeout", 300))
        return machine

    def _live(self, machine, seconds) -> None:
        if machine.timer is not None:
            machine.timer.cancel()
        machine.until = time.time() + seconds
        machine.timer = asyncio.get_running_loop().call_later(
            seconds, lambda: asyncio.ensure_future(self._end(machine.id))
        )

    async def _end(self, name) -> bool:
        if (machine := self.machines.pop(name, None)) is None:
            return False
        machine.timer.cancel()
        await machine.guest.end()
        return True

    async def list(self, request):
        asked = {unquote(k): unquote(v) for k, v in parse_qsl(request.query.get("metadata", ""))}
        found = [one for one in self.machines.values() if asked.items() <= one.metadata.items()]
        start, limit = int(request.query.get("nextToken", 0)), min(int(request.query.get("limit", 100)), 100)
        headers = {"x-next-token": str(start + limit)} if start + limit < len(found) else {}
        return web.json_response([one.listed() for one in found[start : start + limit]], headers=headers)

    async def about(self, request):
        return web.json_response(self._named(request).listed())

    async def remove(self, request):
        return web.Response(status=204) if await self._end(request.match_info["id"]) else _error(404, "not found")

    async def timeout(self, request):
        machine, seconds = self._named(request), (await request.json())["timeout"]
        self._live(machine, seconds)
        self.extended.append([machine.id, seconds])
        return web.Response(status=204)

    async def pause(self, request):
        machine = self._named(request)
        if machine.state == "paused":
            return _error(409, "it is paused")
        machine.guest.send(signal.SIGSTOP)
        machine.state = "paused"
        return web.Response(status=204)

    async def resume(self, request):
        machine = self._named(request)
        machine.guest.send(signal.SIGCONT)
        machine.state = "running"
        self._live(machine, (await request.json()).get("timeout", 300))
        return web.json_response(machine.made(), status=200)

    async def fork(self, request):
        parent, body = self._named(request), await request.json()
        results = []
        for number in range(body.get("count", 1)):
            if self.broken and number == self.broken:
                results.append({"error": {"code": 500, "message": "no room for a fork"}})
                continue
            asked = {**parent.body, "timeout": body["timeout"]}
            child = await self._made(parent.template, parent.metadata, asked, parent.guest.uid)
            files = self.folder / f"fork-{child.id}"
            await parent.guest.copy_files(files)
            await child.guest.fill(files)
            results.append({"sandbox": child.made()})
        return web.json_response(results, status=201)

    async def snapshot(self, request):
        """A name twice is a new build of the same template, as in E2B."""
        machine, name = self._named(request), (await request.json())["name"]
        files = self.folder / f"snapshot-{secrets.token_hex(8)}"
        await machine.guest.copy_files(files)
        if self.dies:
            os._exit(1)
        await asyncio.sleep(self.slow / 10)
        self.snapshots[name] = (files, machine.guest.uid)
        if self.lost:
            self.lost -= 1
            request.transport.abort()
        return web.json_response(_shown(name), status=201)

    async def list_snapshots(self, request):
        return web.json_response([_shown(name) for name in self.snapshots])

    async def remove_snapshot(self, request):
        name = _bare(request.match_info["id"])
        if any(one.template == name for one in self.machines.values()):
            return _error(400, f"cannot delete template '{name}' because there are running sandboxes using it")
        return web.Response(status=204) if self.snapshots.pop(name, None) else _error(404, "not found")

    async def test(self, request):
        """`busy`: so many requests answered with 429; `lost`: so many creations and snapshots without an answer;
        `broken`: the number of the fork that fails; `snapshotting`: whether it offers that; `dies`: in the middle of
        it; `slow`: tenths of a second that it takes. The answer: what it has, and what it was asked."""
        for name, value in (await request.json()).items():
            setattr(self, name, value)
        machines = [{**one.listed(), "body": one.body} for one in self.machines.values()]
        said = {"machines": machines, "extended": self.extended, "busy": self.busy}
        return web.json_response({**said, "snapshots": list(self.snapshots)})

    async def proxy(self, request):
        machine = self.machines.get(request.headers.get("E2b-Sandbox-Id", ""))
        if machine is None or machine.state == "paused":
            return _error(502, f"The sandbox {request.headers.get('E2b-Sandbox-Id')} was not found")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with machine.guest.http.request(
                request.method, request.rel_url, headers=headers, data=request.content, timeout=timeout
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _DROPPED}
                sent = web.StreamResponse(status=answer.status, headers=kept)
                await sent.prepare(request)
                async for data in answer.content.iter_any():
                    await sent.write(data)
                await sent.write_eof()
        except (aiohttp.ClientError, OSError, RuntimeError):  # the machine ended meanwhile
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        return sent

    def _named(self, request) -> Machine:
        if (machine := self.machines.get(request.match_info["id"])) is None:
            raise web.HTTPNotFound(text='{"code": 404, "message": "sandbox not found"}')
        return machine


def _shown(name) -> dict:
    return {"snapshotID": f"team/{name}:default", "names": [f"team/{name}"]}


def _bare(name) -> str:
    """A template's own name: clients may write `team/name:tag`."""
    return unquote(name).rpartition("/")[2].partition(":")[0]


def _error(status, message) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status)


def _iso(seconds) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="e2b-service-", ignore_cleanup_errors=True) as folder:
        service = Service(Path(folder))
        runner = web.AppRunner(service.app(), shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(site._server.sockets[0].getsockname()[1], flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()
        for name in list(service.machines):
            await service._end(name)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
