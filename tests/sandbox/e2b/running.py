"""The stand-in service in a process of its own, and the variables by which the official client finds it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_sandbox.spec import SandboxSpec

KEY = "e2b_0123456789"
SPEC = SandboxSpec(image="a-template", read_only=False)
_shared: list[Running] = []


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    url: str

    def test(self, **change: int) -> dict:
        """Make the service misbehave, and see what it has: `Service.test`."""
        request = urllib.request.Request(f"{self.url}/test", json.dumps(change).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """As if its machine lost power: the sandboxes end with it."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def service() -> Iterator[Running]:
    """A service of its own, which a test may kill."""
    with _started() as running, found(running):
        yield running


@contextlib.contextmanager
def shared_service() -> Iterator[Running]:
    """The one service of this process's tests: it takes seconds to start."""
    if not _shared:
        started = _started()
        _shared.append(started.__enter__())
        atexit.register(started.__exit__, None, None, None)
    with found(_shared[0]):
        yield _shared[0]


@contextlib.contextmanager
def found(running: Running) -> Iterator[None]:
    """The official client finds this service."""
    values = {"E2B_API_URL": running.url, "E2B_SANDBOX_URL": running.url, "E2B_API_KEY": KEY}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _started() -> Iterator[Running]:
    process = subprocess.Popen([sys.executable, "-m", "tests.sandbox.doubles.e2b"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Running(process, f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
