"""Ray on this machine alone: loopback addresses, free ports, logical GPUs, and a node for each node of the job."""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl._util.children import how_ended
from agentrl.errors import ConfigError
from agentrl.rehearse.plan import Layout

_END_S = 20.0
_STORE_BYTES = 200_000_000
_MOST_NODES = 2
_NETWORK = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
"""The first numbers of the nodes' addresses: other numbers in each process."""
_READY = "Ray runtime started"
_STARTS = 3
_SLOW = ("The current node timed out during startup", "Timed out waiting for file")
"""A busy machine exceeds two constants of Ray 2.60: `ray start` waits 30 s for its raylet, and the raylet 15 s for its
agent (ray/_private/node.py, src/ray/util/port_persistence.h)."""


@dataclass(slots=True)
class Guarded:
    """All processes of a rehearsal. A guard starts and ends the processes. `with Guarded() as processes`."""

    peak_bytes: int = 0
    """The most memory of all processes together, as measured every few seconds."""
    is_lost: bool = False
    """Whether the guard itself has ended, and all processes with it."""
    _statuses: dict[str, int] = field(default_factory=dict)
    _guard: subprocess.Popen[bytes] = field(init=False)
    _buffer: bytes = b""

    def __enter__(self) -> Self:
        program = Path(__file__).with_name("guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-IS", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self, name: str, words: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path) -> None:
        """Start a process. Its output goes to the end of `log`."""
        self._statuses.pop(name, None)
        request = {"name": name, "words": [*words], "variables": {**variables}, "folder": str(folder), "log": str(log)}
        self._ask("start", **request)

    def kill(self, name: str) -> None:
        """Kill a started process and its descendants."""
        self._ask("kill", name=name)

    def sweep(self) -> None:
        """Kill the processes that an ended process has left behind."""
        self._ask("sweep")

    def clean(
        self, remove: Iterable[Path] = (), remove_if_empty: Iterable[Path] = (), keep: Iterable[tuple[Path, Path]] = ()
    ) -> None:
        """Name folders to remove at the end, also after a kill of this process, and folders of logs to copy before."""
        pairs = [(str(source), str(copy)) for source, copy in keep]
        self._ask("clean", remove=[*map(str, remove)], remove_if_empty=[*map(str, remove_if_empty)], keep=pairs)

    def status(self, name: str) -> int | None:
        """The exit status of a started process. None while it runs."""
        return self._statuses.get(name)

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, but no longer than `seconds`."""
        stdout = self._guard.stdout
        assert stdout is not None
        before, deadline = len(self._statuses), time.monotonic() + seconds
        while len(self._statuses) == before and not self.is_lost and (rest := deadline - time.monotonic()) > 0:
            if not select.select([stdout], [], [], rest)[0]:
                return
            data = os.read(stdout.fileno(), 1 << 16)
            self.is_lost = not data
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._read(json.loads(line))

    def _read(self, report: Mapping[str, Any]) -> None:
        self.peak_bytes = max(self.peak_bytes, report.get("bytes", 0), report.get("peak", 0))
        if report["report"] == "ended":
            self._statuses[report["name"]] = report["status"]

    def _ask(self, request: str, **arguments: Any) -> None:
        stdin = self._guard.stdin
        assert stdin is not None
        with suppress(OSError):
            stdin.write(json.dumps({"request": request, **arguments}).encode() + b"\n")
            stdin.flush()

    def end(self) -> None:
        """End all processes, and remove their files."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(OSError):
                self._guard.stdin.close()
            deadline = time.monotonic() + _END_S
            while not self.is_lost and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(_END_S)
            if self._guard.stdout is not None:
                self._guard.stdout.close()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def node_address(number: int) -> str:
    """The loopback address of a node. Each node has another, as nodes of a cluster do not share their ports. Two
    rehearsals on one machine have other addresses: slime looks for free ports, and two of its programs may choose the
    same ones.

    Ray replaces 127.0.0.1 by the machine's address in the network, so no node has that address.
    """
    return f"{_NETWORK}.{number + 1}"


def ray_variables(port: int) -> dict[str, str]:
    """Variables by which programs find this Ray, and no other."""
    hosts = ",".join(("localhost", "127.0.0.1", *(node_address(number) for number in range(_MOST_NODES))))
    return {
        "RAY_ADDRESS": f"{node_address(0)}:{port}",
        "RAY_AUTH_MODE": "disabled",  # else an existing ~/.ray/auth_token is demanded from the driver, which sends none
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_usage_threshold": "0.99",
        "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        "RAY_raylet_start_wait_time_s": "240",  # a busy machine starts a node slowly
        "no_proxy": hosts,
        "NO_PROXY": hosts,
    }


def start_ray(
    guarded: Guarded, python: Path, layout: Layout, variables: Mapping[str, str], out: Path, *, timeout_s: float
) -> dict[str, str]:
    """Start Ray with a node for each of the layout's, and return the variables for its programs.

    Raises ConfigError, with the cause, if a node does not start within `timeout_s`.
    """
    temporary = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))  # short: a socket's path has at most 107 characters
    guarded.clean(remove=[temporary], keep=[(temporary / "session_latest" / "logs", out / "ray")])
    port = free_ports(1)[0]
    env = {**variables, **ray_variables(port), "TMPDIR": str(temporary)}  # so all temporary files are removed
    for number in range(layout.nodes):
        name, log = _node_name(number), _node_log(out, number)
        node = {**env, "SLIME_HOST_IP": node_address(number)}
        if number == 0:
            node.pop("RAY_ADDRESS")
        deadline = time.monotonic() + timeout_s
        for _ in range(_STARTS):
            guarded.start(name, _words(python, number, port, layout.gpus, temporary), node, out, log)
            error = _start_error(guarded, name, log, temporary / "session_latest/logs/raylet.err", deadline)
            if not any(sign in error for sign in _SLOW):
                break
            guarded.sweep()
        if error:
            raise ConfigError(f"Ray did not start: {error} ({log})")
    return {**env, "SLIME_HOST_IP": node_address(0)}


def lost_part(guarded: Guarded, out: Path) -> str:
    """The part without which slime's program would only wait: the guard or a node of Ray. Empty while all run."""
    for number in range(_MOST_NODES):
        if (status := guarded.status(_node_name(number))) is not None:
            return f"{_node_name(number)}, which ended {how_ended(status)}: {_cause(_node_log(out, number))}"
    return "its guard" if guarded.is_lost else ""


def _node_name(number: int) -> str:
    return f"ray node {number}"


def _node_log(out: Path, number: int) -> Path:
    return out / f"ray-node{number}.txt"


def _words(python: Path, number: int, port: int, gpus: int, temporary: Path) -> list[str]:
    agent, grpc, runtime, metrics, client = free_ports(5)
    address = node_address(number)
    place: list[Any] = ["--address", f"{node_address(0)}:{port}"]
    if number == 0:
        place = ["--head", "--port", port, "--include-dashboard", "false", "--temp-dir", temporary]
        if find_spec("grpc") is not None:  # else Ray has no server of clients, and refuses a port for it
            place += ["--ray-client-server-port", client]
    words = [
        *(python, "-m", "ray.scripts.scripts", "start", "--block", *place, "--node-ip-address", address),
        *("--num-gpus", gpus, "--num-cpus", 16, "--object-store-memory", _STORE_BYTES, "--disable-usage-stats"),
        *("--dashboard-agent-listen-port", agent, "--dashboard-agent-grpc-port", grpc),
        *("--runtime-env-agent-port", runtime, "--metrics-export-port", metrics),
    ]
    return [*map(str, words)]


def _start_error(guarded: Guarded, name: str, log: Path, abort: Path, deadline: float) -> str:
    """Wait for a node, and return why the node did not start. Empty if the node has started. If the file `abort` says
    that the raylet has aborted, the node is killed: `ray start` would wait for RAY_raylet_start_wait_time_s."""
    while time.monotonic() < deadline:
        guarded.wait(0.25)
        if log.exists() and _READY in log.read_text(encoding="utf-8", errors="replace"):
            return ""
        if guarded.status(name) is not None or guarded.is_lost:
            return _cause(log)
        text = abort.read_text(encoding="utf-8", errors="replace") if abort.exists() else ""
        if failed := re.search(r"Check failed: .*\n", text):
            abort.rename(abort.with_name("raylet-aborted.err"))
            guarded.kill(name)
            while guarded.status(name) is None and not guarded.is_lost:
                guarded.wait(1)
            return failed[0].strip()
    return "no end within --timeout; look at its log"


def _cause(log: Path) -> str:
    """The last line of a node's output, or the line in which Ray names the part that ended."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = ["no output", *(line.strip() for line in text.splitlines() if line.strip())]
    return next((line for line in lines if "[exit code=" in line), lines[-1])
