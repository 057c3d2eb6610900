"""A real Chromium, driven through DevTools: no driver and no package is needed besides the distribution's browser."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from agentrl.view.server import ViewServer
from agentrl.view.sources import open_source

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and "browser" not in os.environ.get("AGENTRL_REQUIRE", "").split(","),
    reason="no chromium: .ci/browser.sh installs the distribution's, or CHROMIUM names one",
)
_KEYS = {"Escape": 27, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One page. Everything that it asks for, logs or opens is kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket, self._session = socket, session
        self._sent, self._waiting = 0, dict[int, asyncio.Future[Any]]()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def begin(self) -> Self:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")
        await self.size(1400, 900)
        return self

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found and found["id"] in self._waiting:
                self._waiting.pop(found["id"]).set_result(found)
            self._note(found.get("method"), found.get("params", {}))

    def _note(self, method: str | None, given: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.problems.append(f"{details['text']} {details.get('exception', {}).get('description', '')}")
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.problems.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif method in ("Page.javascriptDialogOpening", "Page.windowOpen"):
            self.problems.append(f"{method} {given}")

    async def send(self, method: str, **given: Any) -> Any:
        self._sent += 1
        future = self._waiting[self._sent] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._sent, "method": method, "params": given, "sessionId": self._session})
        found = await asyncio.wait_for(future, 30)
        assert "error" not in found, (method, found["error"])
        return found["result"]

    async def size(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page. DevTools may evaluate; the page's policy stays on."""
        found = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 20) -> Any:
        """Wait until an expression is true."""
        async with asyncio.timeout(seconds):
            while not (value := await self.js(expression)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return value

    async def goto(self, address: str) -> None:
        await self.send("Page.navigate", url=address)
        await self.ready()

    async def visit(self, address: str, view: str) -> None:
        """Go to another address of the page, such as `#/0/list`."""
        await self.js(f"delete document.querySelector('main').dataset.ready; location.hash = {json.dumps(address)}; 1")
        await self.ready(view)

    async def ready(self, view: str | None = None) -> None:
        """Wait until the page has drawn a view."""
        wanted = "undefined" if view is None else json.dumps(view)
        await self.until(
            f"(() => {{ const m = document.querySelector('main'); const w = {wanted};"
            " return m && 'ready' in m.dataset && (w === undefined || m.dataset.ready === w); })()"
        )

    async def click(self, selector: str, text: str | None = None, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """A real click, in the middle of the first element that fits and shows `text`."""
        find = f"[...document.querySelectorAll({json.dumps(selector)})]"
        if text is not None:
            find += f".filter((e) => e.textContent.includes({json.dumps(text)}))"
        box = await self.until(
            f"(() => {{ const e = {find}[0]; if (!e) return null; e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = box[0] + box[2] * at[0], box[1] + box[3] * at[1]
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = _KEYS.get(key, 0)
            typed = "\r" if key == "Enter" else "" if key in _KEYS else key
            text = {"text": typed} if typed and kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    async def type(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def text(self, selector: str = "main") -> str:
        return str(await self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def dark(self, on: bool) -> None:
        await self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}],
        )

    async def screenshot(self, file: Path) -> None:
        found = await self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))  # noqa: ASYNC240


class Counted:
    """Counts clicks."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.clicks = browser, 0
        self.text, self.key, self.until, self.ready, self.js = (
            browser.text,
            browser.key,
            browser.until,
            browser.ready,
            browser.js,
        )
        self.visit = browser.visit

    async def click(self, selector, text=None, **given):
        self.clicks += 1
        await self.browser.click(selector, text, **given)


class server_of:
    """A server over inputs, while the block runs."""

    def __init__(self, *paths: Path, model: str | None = "tiny") -> None:
        self._server = ViewServer([open_source(path) for path in paths], model=model)

    async def __aenter__(self) -> ViewServer:
        await self._server.start()
        return self._server

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with a profile of its own, which is removed."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="agentrl-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        drain: asyncio.Task[Any] | None = None
        try:
            address = await asyncio.wait_for(_address(process), 60)
            drain = asyncio.create_task(_drain(process))
            async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
                session = await _attached(socket)
                browser = await Browser(socket, session).begin()
                yield browser
                browser._reader.cancel()
        finally:
            if drain is not None:
                drain.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if found := re.search(rb"ws://\S+", line):
            return found[0].decode()
    raise AssertionError("chromium ended before it listened")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.read(1 << 16):
        pass


async def _attached(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The session of the page that is open."""

    async def send(number: int, method: str, **given: Any) -> Any:
        await socket.send_json({"id": number, "method": method, "params": given})
        while True:
            found = json.loads((await socket.receive()).data)
            if found.get("id") == number:
                return found["result"]

    targets = (await send(-1, "Target.getTargets"))["targetInfos"]
    page = next(target["targetId"] for target in targets if target["type"] == "page")
    return str((await send(-2, "Target.attachToTarget", targetId=page, flatten=True))["sessionId"])
