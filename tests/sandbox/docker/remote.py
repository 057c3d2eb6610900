"""Other machines, on this one: Docker Engines in folders of their own, and an SSH server on loopback with new keys."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.sandbox.engine import REQUIRED

FLAGS = (  # without these an engine would change this machine's routing and firewall
    "--bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false "
    "--exec-opt native.cgroupdriver=cgroupfs --storage-driver=overlay2"
)
IMAGE = "agentrl-tests:busybox"
_START_S = 60.0
_END = r"""
cat > /dev/null
cd "$1" || exit
if pid=$(cat pidfile 2> /dev/null); then
    kill -CONT "$pid"
    for container in $(timeout 60 docker --host "unix://$1/docker.sock" ps -aq); do
        timeout 60 docker --host "unix://$1/docker.sock" rm -f -v "$container"
    done
    timeout 60 docker --host "unix://$1/docker.sock" network prune -f
    kill "$pid"
    for _ in $(seq 300); do [ -e pidfile ] || break; sleep 0.1; done
    [ ! -e pidfile ] || kill -KILL -- "-$pid"
fi
for process in /proc/[0-9]*; do
    case $(tr '\0' ' ' 2> /dev/null < "$process/cmdline") in
        *containerd-shim*"$1"/*) kill -KILL "${process#/proc/}" ;;
    esac
done
cd /
sort -r /proc/mounts | while read -r _ place _; do
    case $place in "$1"/*) umount -l "$place" ;; esac
done
rm -rf "$1"
"""
"""Ends an engine, given by its folder, and removes what it made, once the standard input ends: when its `Daemon` is
closed, or when the run of the tests ends in any way."""


def needs(*programs: str) -> None:
    """Skip the test if this machine cannot run it; fail where an engine is promised."""
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if os.getuid() != 0:
        missing.append("root")
    if missing:
        assert "docker" not in REQUIRED, missing
        pytest.skip(f"needs {', '.join(missing)}")


class Daemon:
    """A Docker Engine that can be killed and started again."""

    def __init__(self, *flags: str) -> None:
        # Not below /tmp, which may be in memory, where overlay2 cannot work. The path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="agentrl-engine-", dir="/var/tmp"))
        self.socket, self._flags = f"{self.folder}/docker.sock", flags
        self._end = subprocess.Popen(
            ["/bin/sh", "-c", _END, "end", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self) -> None:
        places = [f"--{name}={self.folder}/{name}" for name in ("data-root", "exec-root", "pidfile")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", f"--host=unix://{self.socket}", *places, *FLAGS.split(), *self._flags],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while self.docker("version", check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def docker(self, *arguments: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", "--host", f"unix://{self.socket}", *arguments],
            check=check,
            capture_output=True,
            input=stdin,
            env={**os.environ, "DOCKER_TLS_VERIFY": ""},
        )

    def import_image(self, name: str = IMAGE) -> None:
        self.docker("import", "-", name, stdin=root_file_system())

    def containers(self) -> list[str]:
        return self.docker("ps", "-aq").stdout.decode().split()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As when its machine dies: the engine and all its containers end at once, and no request is answered."""
        names = _descendants(self._process.pid)
        for pid in [self._process.pid, *names, *self._shims()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        (self.folder / "pidfile").unlink(missing_ok=True)

    def close(self) -> None:
        self._end.communicate()
        self._process.wait()

    def _shims(self) -> list[int]:
        """The processes that hold its containers, and the containers' own."""
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if str(self.folder).encode() in words and b"containerd-shim" in words.split(b"\0")[0]:
                    found += [pid, *_descendants(pid)]
        return found


class SshServer:
    """An SSH server on loopback, with new keys. The program `ssh` in its folder `bin` uses them."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self.port = folder, free_port()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nStrictModes no\n"
            f"PermitRootLogin prohibit-password\n" + "".join(f"{option}\n" for option in options)
        )
        host = (folder / "host.pub").read_text().strip()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host}\n")
        (folder / "client").write_text(
            f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
            "GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"
        )
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "ssh"
        program.write_text(f'#!/bin/sh\necho >> {folder}/logins\nexec /usr/bin/ssh -F {folder}/client "$@"\n')
        program.chmod(0o755)

    @property
    def logins(self) -> int:
        return (self._folder / "logins").read_text().count("\n")

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        log = self._folder / "log"
        self._process = subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-E", log, "-f", self._folder / "sshd_config"], start_new_session=True
        )
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text())
            time.sleep(0.05)

    def connections(self) -> list[int]:
        """The processes that serve its clients."""
        return _descendants(self._process.pid)

    def stop(self) -> None:
        """With all its connections."""
        for pid in [*_descendants(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def address(self, path: str) -> str:
        return f"ssh://root@127.0.0.1:{self.port}{path}"


def root_file_system() -> bytes:
    """The smallest that a sandbox can have: a static busybox, as a tar file."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("bin", "work", "tmp", "etc", "root", "proc", "sys", "dev"):
            (tree / name).mkdir()
        shutil.copy("/usr/bin/busybox", tree / "bin/busybox")
        for name in subprocess.run(["busybox", "--list"], check=True, capture_output=True, text=True).stdout.split():
            if name != "busybox":
                (tree / "bin" / name).symlink_to("busybox")
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\n")
        return subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True).stdout


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
