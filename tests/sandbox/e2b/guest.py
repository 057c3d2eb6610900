"""A machine of the stand-in service: Linux namespaces in which E2B's own agent `envd` runs as it does in E2B's virtual
machines. AGENTRL_ENVD names its program, built from github.com/e2b-dev/infra, packages/envd.

It isolates as much as tests need that run commands of the project's own. It is no back end for what a model wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from pathlib import Path

import aiohttp

PORT = 49983
_CAPABILITIES = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,sys_ptrace,sys_resource"
_START = """
set -e
base=$1 envd=$2 uid=$3
mount -t tmpfs -o mode=755 tmpfs "$base"
mkdir "$base/up" "$base/job" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/up,workdir=$base/job" "$base/root"
cd "$base/root"
for name in work root home run dev; do mount -t tmpfs -o mode=755 tmpfs $name; done
mkdir dev/shm
for name in tmp var/tmp dev/shm; do mount -t tmpfs -o mode=1777,size=512m tmpfs $name; done
for name in null zero full random urandom tty; do : > dev/$name; mount --bind /dev/$name dev/$name; done
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t proc proc proc
sed -i /^agent:/d etc/passwd etc/group
echo "agent:x:$uid:$uid::/home/agent:/bin/bash" >> etc/passwd
echo "agent:x:$uid:" >> etc/group
mkdir -p home/agent && chown $uid:$uid home/agent
: > usr/local/bin/envd; mount --bind "$envd" usr/local/bin/envd
ip link set lo up
exec chroot . env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
  setpriv --inh-caps=-all --bounding-set=-all,+CAPABILITIES sh -c 'envd -isnotfc -no-cgroups >/dev/null 2>&1 & wait'
""".replace("CAPABILITIES", _CAPABILITIES.replace(",", ",+"))
"""The first process inside is a shell, which reaps orphans. The service's death ends it."""

_KEPT = ("work", "tmp", "var/tmp")


async def _copy(source: Path, target: Path) -> None:
    copying = await asyncio.create_subprocess_exec("cp", "-a", f"{source}/.", f"{target}/")
    assert await copying.wait() == 0


class Guest:
    def __init__(self, base: Path, uid: int, token: str) -> None:
        self.base, self.uid, self.token = base, uid, token
        self.http: aiohttp.ClientSession
        self._process: asyncio.subprocess.Process
        self._first = 0

    async def start(self) -> None:
        self.base.mkdir()
        self._process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc"),
            *("--net", "--uts", "sh", "-c", _START, "sh", str(self.base), os.environ["AGENTRL_ENVD"], str(self.uid)),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        connector = aiohttp.TCPConnector(socket_factory=lambda _: self._socket(), limit=0)
        self.http = aiohttp.ClientSession(f"http://127.0.0.1:{PORT}", connector=connector, auto_decompress=False)
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError, OSError, IndexError):
                async with self.http.get("/health") as answer:
                    if answer.status == 204:
                        break
            await asyncio.sleep(0.05)
        async with self.http.post("/init", json={"accessToken": self.token, "envVars": {}}) as answer:
            assert answer.status == 204, await answer.text()

    async def end(self) -> None:
        await self.http.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.to_thread(self._gone)
        self.base.rmdir()

    def _gone(self) -> None:
        """Wait for the end of its first process, with which all others inside end."""
        while self._first and Path(f"/proc/{self._first}").exists():
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        """A signal to all its processes: SIGSTOP and SIGCONT are how it is paused and resumed."""
        own = os.readlink(f"/proc/{self._init()}/ns/pid")
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(f"/proc/{int(name)}/ns/pid") == own:
                    os.kill(int(name), number)

    async def copy_files(self, folder: Path) -> None:
        """Its writable folders into a folder: what a snapshot holds, without the memory."""
        for name in _KEPT:
            (folder / name).mkdir(parents=True)
            await _copy(Path(f"/proc/{self._init()}/root/{name}"), folder / name)

    async def fill(self, folder: Path) -> None:
        """The reverse of `copy_files`."""
        for name in _KEPT:
            await _copy(folder / name, Path(f"/proc/{self._init()}/root/{name}"))

    def _init(self) -> int:
        """The process id of its first process, on this machine."""
        if not self._first:
            unshare = self._process.pid
            self._first = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
        return self._first

    def _socket(self) -> socket.socket:
        """A socket of the machine's own network, which has no other way in. A thread can enter it and end there."""
        made: list[socket.socket] = []
        handle = os.open(f"/proc/{self._init()}/ns/net", os.O_RDONLY)

        def make() -> None:
            if ctypes.CDLL(None).setns(handle, 0) == 0:
                made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        os.close(handle)
        if not made:
            raise OSError("the machine has ended")
        made[0].setblocking(False)
        return made[0]
