"""Sandboxes with a list of hosts: what they reach, what they do not, and what is left of it."""

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from agentrl import EnvFactory, Task
from agentrl.errors import ConfigError, SandboxError
from agentrl.monitor.metrics import RolloutMetrics
from agentrl.sandbox import HasAllowedHosts
from agentrl.testing import call, rollout
from agentrl_envs.coding import CodingEnv, Grade, Problem, Step
from agentrl_sandbox import SandboxPool, SandboxSpec, open_backend
from tests.sandbox.backends.inside import ISOLATED

HERE = "127.0.0.2"
BUSYBOX = shutil.which("busybox")
SMALL = SandboxSpec(memory_mb=256, disk_mb=64, file_mb=16, pids=64)
over_both = pytest.mark.parametrize("backend", ISOLATED, indirect=True)

FETCH = """
import ssl, sys, urllib.request as u
try:
    context = ssl._create_unverified_context()
    print(u.urlopen(sys.argv[1], timeout=10, context=context).read().decode())
except Exception as exc:
    print(exc)
"""
REACH = """
import socket, sys
def tries(name, what):
    try:
        what()
    except OSError as exc:
        return
    print("reached", name)
for host in sys.argv[2:]:
    tries(host, lambda: socket.create_connection((host, int(sys.argv[1])), 1))
for host in ("169.254.169.254", "10.0.0.1", "172.17.0.1", "1.1.1.1"):
    tries(host, lambda: socket.create_connection((host, 80), 1))
tries("dns", lambda: socket.getaddrinfo("pypi.org", 443))
tries("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("8.8.8.8", 53)))
tries("udp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(("2001:4860:4860::8888", 53)))
print(*(name for _, name in socket.if_nameindex()))
"""


async def fetch(box, url):
    return (await box.exec(f"python3 -c '{FETCH}' {url}", timeout=30)).stdout.strip()


def listing(*entries, **more):
    return SMALL.model_copy(update={"network": entries, **more})


@pytest.fixture
async def host():
    """A server of HTTP on this machine."""

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HERE, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.thorough
@over_both
async def test_it_reaches_what_is_listed_and_nothing_else(backend, host):
    async with backend.sandbox(listing(f"{HERE}:{host}")) as box:
        assert isinstance(box, HasAllowedHosts)
        assert await fetch(box, f"http://{HERE}:{host}/") == "hello"
        assert "403" in await fetch(box, f"http://127.0.0.3:{host}/")
        assert "403" in await fetch(box, "https://pypi.org/")
        assert (await box.exec(f"python3 -c '{REACH}' {host} {HERE} 127.0.0.1")).stdout == "lo\n"
        said = (await box.exec("env | grep -ic proxy=http://127.0.0.1:3128; echo $no_proxy")).stdout
        assert said == "4\nlocalhost,127.0.0.1,::1\n"
        assert box.refused == {f"127.0.0.3:{host}": 1, "pypi.org:443": 1}


@pytest.fixture
def certificate(tmp_path):
    """A file with a key and its certificate."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=x",
    ]
    for place in ("-keyout", "-out"):
        command += [place, str(tmp_path / place)]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "both").write_text("".join((tmp_path / place).read_text() for place in ("-keyout", "-out")))
    return tmp_path / "both"


@pytest.mark.thorough
@over_both
async def test_https_goes_through_a_tunnel(backend, certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HERE, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with backend.sandbox(listing(f"good.test:{port}", HERE)) as box:
        box._proxy.resolve = lambda name: [HERE]
        assert await fetch(box, f"https://good.test:{port}/") == "secret"
        assert "403" in await fetch(box, f"https://evil.test:{port}/")
        assert box.refused == {f"evil.test:{port}": 1}
    server.close()


@pytest.mark.thorough
@over_both
async def test_two_sandboxes_share_nothing(backend, host):
    first, second = listing(f"{HERE}:{host}"), listing("pypi.org")
    async with backend.sandbox(first) as one, backend.sandbox(second) as other, backend.sandbox(SMALL) as none:
        assert await fetch(one, f"http://{HERE}:{host}/") == "hello"
        assert "403" in await fetch(other, f"http://{HERE}:{host}/")
        dial = 'import socket; socket.create_connection(("127.0.0.1", 3128))'
        assert "efused" in (await none.exec(f"python3 -c '{dial}'")).stderr
        assert (await none.exec("env | grep -ic proxy")).stdout == "0\n"
        assert (one.refused, other.refused, none.refused) == ({}, {f"{HERE}:{host}": 1}, {})


@over_both
async def test_commands_cannot_take_the_proxy_s_place_and_users_may_change_the_variables(backend):
    async with backend.sandbox(listing("pypi.org", env={"NO_PROXY": "mine"})) as box:
        bind = 'import socket; socket.create_server(("127.0.0.1", 3128))'
        assert "in use" in (await box.exec(f"python3 -c '{bind}'")).stderr
        assert (await box.exec("echo $NO_PROXY")).stdout == "mine\n"


@pytest.mark.thorough
@over_both
async def test_a_pool_keeps_lists_apart(backend, host):
    async with SandboxPool(backend, listing(f"{HERE}:{host}"), size=2, warm=1) as pool:
        async with pool.acquire() as box:
            assert await fetch(box, f"http://{HERE}:{host}/") == "hello"
        async with pool.acquire(listing("pypi.org")) as box:
            assert "403" in await fetch(box, f"http://{HERE}:{host}/")
        async with pool.acquire() as box:
            assert box.refused == {}  # a new one


@pytest.mark.thorough
@over_both
async def test_a_way_that_cannot_be_made_is_told_and_leaves_nothing(backend, monkeypatch):
    module = f"agentrl_sandbox.{backend.name}.{'egress' if backend.name == 'docker' else 'sandbox'}.PROGRAM"
    monkeypatch.setattr(module, "raise SystemExit('no luck today')")
    box = backend.sandbox(listing("pypi.org"))
    with pytest.raises(SandboxError, match="no way to the sandbox's proxy could be made: no luck today"):
        await box.__aenter__()
    assert not [one for one in await backend.list() if one.sandbox_id.startswith(box.sandbox_id)]


class Anything:
    async def grade(self, box):
        return Grade(1.0)


def fetching(task):
    return Problem((Step("Fetch.", Anything()),))


@pytest.mark.thorough
@over_both
async def test_an_episode_counts_what_its_model_asked_for_in_vain(backend):
    config = {"backend": backend.name, "spec": {"network": ["pypi.org"], "memory_mb": 256, "pids": 64}, "size": 1}
    commands = [f"python3 -c '{FETCH}' {url}" for url in ("https://evil.org/", "https://evil.org/", "http://10.0.0.1/")]
    turns = [*(call("bash", command=command) for command in commands), call("submit")]
    async with EnvFactory(CodingEnv, config) as envs:
        t = await rollout(envs.make(), Task(id="it", metadata={"format": f"{__file__}:fetching"}), turns)
    assert t.info["refused_hosts"] == {"evil.org:443": 2, "10.0.0.1:80": 1}
    assert RolloutMetrics.of_groups([[t]]).refused_hosts == {"evil.org:443": 2, "10.0.0.1:80": 1}
    assert t.reward == 1.0


@pytest.mark.skipif(BUSYBOX is None, reason="needs the package busybox-static")
@pytest.mark.parametrize("backend", ["docker"], indirect=True)
async def test_an_image_without_python(backend, host, tmp_path):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for name in ("sh", "ls", "mkdir", "chown", "stat", "grep", "cat", "sleep", "id", "wget"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    async with backend.sandbox(listing(f"{HERE}:{host}", image=str(tmp_path / "root.tar"))) as box:
        assert (await box.exec(f"wget -q -O - http://{HERE}:{host}/")).stdout == "hello"
        assert "403" in (await box.exec(f"wget -q -O - http://{HERE}:1/")).stderr
        assert "python" not in (await box.exec("python3 -V")).stdout


@pytest.mark.parametrize("backend", ["docker"], indirect=True)
@pytest.mark.timeout(300)
async def test_cancelled_creation_leaves_nothing(backend):
    await backend.prepare("")
    boxes = [backend.sandbox(listing("pypi.org")) for _ in range(10)]
    tasks = [asyncio.create_task(box.__aenter__()) for box in boxes]
    for task in tasks:
        await asyncio.sleep(0.4)
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.gather(*(box.close() for box in boxes))
    ids = [box.sandbox_id for box in boxes]
    left = [one.sandbox_id for one in await backend.list()]
    assert not [one for one in left if one.removesuffix(".proxy") in ids]
    assert sum(task.cancelled() for task in tasks) > 0


@over_both
async def test_closing_ends_what_is_under_way(backend):
    asked = asyncio.Event()

    async def silent(reader, writer):
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    async with backend.sandbox(listing(f"{HERE}:{port}")) as box:
        await box.start(f"python3 -c '{FETCH}' http://{HERE}:{port}/")
        await asyncio.wait_for(asked.wait(), 60)
    assert not box._proxy.connections
    server.close()


@pytest.mark.thorough
@over_both
@pytest.mark.timeout(120)
async def test_after_kill_9_of_the_owner_nothing_is_left(backend):
    """The owner is killed while it has one sandbox, and while it makes others."""
    owner = Path(__file__).with_name("owner.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, owner, backend.name, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    name = (await process.stdout.readline()).decode().strip()
    assert await process.stdout.readline() == b"open\n"
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    process._transport.close()
    for _ in range(40):
        left = [one for one in await backend.list() if one.owner == name]
        if not left:
            break
        assert all(one.gone for one in left)
        await backend.remove([one.sandbox_id for one in left])
        await asyncio.sleep(0.25)
    assert not left


async def test_back_ends_that_cannot_keep_to_a_list_refuse_it_by_name():
    async with open_backend("local") as backend:
        with pytest.raises(ConfigError, match="local sandboxes reach whatever this machine reaches"):
            backend.sandbox(listing("pypi.org"))
