"""Start a Docker Engine from nothing, run a command beside it, stop the engine and remove what it made: see docker.sh.

docker_engine.py COMMAND...: the engine keeps all of its files in a folder of its own, and changes neither the routes
nor the firewall of this machine. While tests have networks, these are bridges without an address. The command finds in
its environment
    DOCKER_HOST           the engine's socket
    AGENTRL_BASE_IMAGE    the base image: base_image.py
    AGENTRL_REQUIRE       with "docker,bubblewrap" in it: tests fail where they would skip
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_START_S = 60.0
"""Seconds for the engine to come up; one is usual."""
_STOP_S = 30.0
_FLAGS = (  # without these it would change the host's routing and firewall, and leave them so
    "--bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false "
    "--exec-opt native.cgroupdriver=cgroupfs --storage-driver=overlay2"
)
_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "docker"


def main() -> int:
    signal.signal(signal.SIGTERM, _exit)
    with _engine() as socket:
        variables = {
            "DOCKER_HOST": socket,
            "AGENTRL_BASE_IMAGE": _import_base(socket),
            "AGENTRL_REQUIRE": ",".join(filter(None, (os.environ.get("AGENTRL_REQUIRE"), "docker,bubblewrap"))),
        }
        with subprocess.Popen(sys.argv[1:], env={**os.environ, **variables}) as command:
            try:
                return command.wait()
            finally:
                command.terminate()


@contextlib.contextmanager
def _engine() -> Iterator[str]:
    """A running engine, given by its socket's address."""
    # Not below /tmp, which may be in memory, where overlay2 cannot work. The path must be short.
    folder = Path(tempfile.mkdtemp(prefix="agentrl-docker-", dir="/var/tmp"))
    socket = f"unix://{folder}/docker.sock"
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    log = folder / "log"
    with open(log, "wb") as output:
        daemon = subprocess.Popen(
            ["dockerd", f"--host={socket}", *places, *_FLAGS.split()],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait(daemon, socket, log)
        yield socket
    finally:
        _stop(daemon, socket)
        _remove(folder)


def _wait(daemon: subprocess.Popen[bytes], socket: str, log: Path) -> None:
    begun = time.monotonic()
    while _docker(socket, "version").returncode:
        if daemon.poll() is not None or time.monotonic() - begun > _START_S:
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
            raise SystemExit("docker: the engine did not start; the end of its log is above")
        time.sleep(0.1)
    print(f"docker: {socket} up after {time.monotonic() - begun:.1f} s", flush=True)


def _stop(daemon: subprocess.Popen[bytes], socket: str) -> None:
    """Containers and networks first: the engine would otherwise leave file systems mounted, and its bridges."""
    if daemon.poll() is None:
        if left := _docker(socket, "ps", "-aq").stdout.split():
            _docker(socket, "rm", "-f", "-v", *left)
        _docker(socket, "network", "prune", "-f")
    daemon.terminate()
    try:
        daemon.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _remove(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((path for path in mounts if path.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(folder)


def _import_base(socket: str) -> str:
    made = subprocess.run(
        ["/usr/bin/python3", Path(__file__).with_name("base_image.py"), _CACHE],
        check=True,
        capture_output=True,
        text=True,
    )
    tar = Path(made.stdout.strip())
    name = f"agentrl-base:{tar.stem.removeprefix('base-')}"
    changes = ["--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "--change", "ENV LANG=C.UTF-8"]
    imported = _docker(socket, "import", *changes, str(tar), name)
    if imported.returncode:
        raise SystemExit(f"docker: the base image cannot be imported: {imported.stderr.strip()}")
    return name


def _docker(socket: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/docker", "--host", socket, *arguments], check=False, capture_output=True, text=True
    )


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
