"""Start two SGLang workers and their router, run a command beside them, stop what was started: see sglang.sh.

sglang_servers.py PYTHON FOLDER MODEL COMMAND...: PYTHON is that of SGLang's environment, FOLDER gets the logs, MODEL is
the folder of what is served. The command finds in its environment
    AGENTRL_ROUTER_URL        the router
    AGENTRL_SGLANG_WORKERS    the workers, with a comma between them
    AGENTRL_SGLANG_PIDS       their process groups, likewise: tests may kill one
    AGENTRL_SGLANG_URL        the first worker
    AGENTRL_SGLANG_MODEL      MODEL
    AGENTRL_SGLANG_PYTHON     PYTHON: tests may start a server of their own
    AGENTRL_SGLANG_DTYPE      in this dtype: as it was given, or float32
    AGENTRL_REQUIRE           with "sglang" in it: tests fail where they would skip
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_START_S = 600.0
"""Seconds for the servers to come up; 20 to 60 are usual, and minutes on a machine that is busy with other things."""
_STOP_S = 10.0
# The memory fraction is of what the machine has free while others come and go, so it leaves room for them; what is
# taken is bounded by the number of tokens.
_WORKER = (
    "--device cpu --attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
    "--mem-fraction-static 0.8 --max-total-tokens 16384 --skip-server-warmup --sleep-on-idle --grammar-backend xgrammar"
)
# The router's command line does not take consistent_hashing, its arguments do.
_ROUTER = """
import sys
from sglang_router.launch_router import launch_router
from sglang_router.router_args import RouterArgs

launch_router(RouterArgs(
    host="127.0.0.1", port=int(sys.argv[1]), prometheus_port=int(sys.argv[2]), worker_urls=sys.argv[3:],
    policy="consistent_hashing", worker_startup_check_interval=1,
))
"""
Group = subprocess.Popen[bytes]


def main() -> int:
    python, folder, model, command = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, _exit)
    one, two, front, metrics = _free_ports(4)
    workers = [f"http://127.0.0.1:{port}" for port in (one, two)]
    router = f"http://127.0.0.1:{front}"
    dtype = os.environ.get("AGENTRL_SGLANG_DTYPE", "float32")
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with _processes(logs, environment) as start:
        serve = [python, "-m", "sglang.launch_server", *_WORKER.split(), "--model-path", model]
        serve += ["--dtype", dtype, "--host", "127.0.0.1", "--port"]
        running = [start(f"worker-{n}", [*serve, str(port)]) for n, port in enumerate((one, two), 1)]
        _wait([f"{url}/health" for url in workers], running, logs)
        routing = start("router", [python, "-c", _ROUTER, str(front), str(metrics), *workers])
        _wait([f"{router}/readiness"], [routing, *running], logs)
        variables = {
            "AGENTRL_ROUTER_URL": router,
            "AGENTRL_SGLANG_WORKERS": ",".join(workers),
            "AGENTRL_SGLANG_PIDS": ",".join(str(worker.pid) for worker in running),
            "AGENTRL_SGLANG_URL": workers[0],
            "AGENTRL_SGLANG_MODEL": model,
            "AGENTRL_SGLANG_PYTHON": python,
            "AGENTRL_SGLANG_DTYPE": dtype,
            "AGENTRL_REQUIRE": ",".join(filter(None, (os.environ.get("AGENTRL_REQUIRE"), "sglang"))),
        }
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


@contextmanager
def _processes(logs: Path, environment: dict[str, str]) -> Iterator[Callable[[str, list[str]], Group]]:
    """A function that starts a process group, given by its leader. At the end these are stopped, and only these."""
    groups: list[Group] = []

    def start(name: str, command: list[str]) -> Group:
        with open(logs / f"{name}.log", "wb") as log:
            started = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        groups.append(started)
        return started

    try:
        yield start
    finally:
        for stop in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _STOP_S
            for group in groups:
                if not _ended(group):
                    os.killpg(group.pid, stop)
            while time.monotonic() < deadline and not all(map(_ended, groups)):
                time.sleep(0.1)


def _ended(group: Group) -> bool:
    """The leader and everybody it started, who may outlive it."""
    if group.poll() is None:
        return False
    try:
        os.killpg(group.pid, 0)
    except ProcessLookupError:
        return True
    return False


def _wait(urls: list[str], servers: list[Group], logs: Path) -> None:
    """Until all answer 200. Raises SystemExit when a server ends or it takes too long."""
    begun = said = time.monotonic()
    while waiting := [url for url in urls if not _answers(url)]:
        now = time.monotonic()
        if now - begun > _START_S or any(server.poll() is not None for server in servers):
            for log in logs.iterdir():
                print(f"== {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
            raise SystemExit(f"sglang: {', '.join(waiting)} did not come up; the ends of the logs are above")
        if now - said > 10:
            said = now
            print(f"sglang: waiting for {', '.join(waiting)} ({now - begun:.0f} s)", flush=True)
        time.sleep(0.5)
    print(f"sglang: {', '.join(urls)} up after {time.monotonic() - begun:.0f} s", flush=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
