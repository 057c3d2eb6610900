"""Engines of several hosts: two on this machine, behind an SSH server on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import chain

import pytest

from agentrl import Env, EnvFactory, Limits, StepResult, Task, Trajectory
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError, SandboxError
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.testing import call
from agentrl_sandbox import SandboxPool, open_backend
from agentrl_sandbox.docker import hosts
from agentrl_sandbox.docker.backend import missing_images
from agentrl_sandbox.services import Mount, Service, ServiceGroup
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.docker.remote import IMAGE, Daemon, SshServer, free_port, needs
from tests.sandbox.doubles.registry import Registry
from tests.sandbox.engine import ALONE, SOAK

pytestmark = ALONE

SPEC = SandboxSpec(image=IMAGE, memory_mb=64, disk_mb=16, pids=32, cpus=0.5)

TASKS = 32 if SOAK else 10

CERTIFICATES = {"cacert": "ca.pem", "cert": "cert.pem", "key": "key.pem"}


@pytest.fixture(scope="module")
def two():
    """Two engines with a small image."""
    needs("dockerd", "sshd", "busybox")
    engines = [Daemon(), Daemon()]
    try:
        for engine in engines:
            engine.start()
            engine.import_image()
        yield engines
    finally:
        for engine in engines:
            engine.close()


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Makes SSH servers."""
    started = []

    def make(*options):
        server = SshServer(tmp_path, *options)
        monkeypatch.setenv("PATH", f"{server.bin}", prepend=":")
        server.start()
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop()


def name_of(server, engines):
    return "docker:" + ",".join(server.address(engine.socket) for engine in engines)


async def test_sandboxes_are_spread_and_removed(two, ssh):
    server = ssh()
    async with open_backend(name_of(server, two)) as backend:
        boxes = [backend.sandbox(SPEC) for _ in range(6)]
        for box in boxes:
            await box.__aenter__()
        assert [len(engine.containers()) for engine in two] == [3, 3]
        results = await asyncio.gather(*(box.exec("cat; echo hello", stdin=b"x" * 300_000) for box in boxes))
        assert all(result.exit_code == 0 and len(result.stdout) == 300_006 for result in results)
        listed = await backend.list()
        assert {found.sandbox_id for found in listed} == {box.sandbox_id for box in boxes}
        assert {found.host for found in listed} == {server.address(engine.socket) for engine in two}
        await asyncio.gather(*(box.close() for box in boxes[:3]))
        await backend.remove([box.sandbox_id for box in boxes[3:]])
        assert await backend.list() == []
        await asyncio.gather(*(box.close() for box in boxes[3:]))
    assert [engine.containers() for engine in two] == [[], []]
    assert server.logins == 2, "one for each host, however many commands"


async def test_all_services_of_a_sandbox_run_on_its_host(two, ssh, tmp_path):
    (tmp_path / "index.html").write_text("a page of this machine")
    mount = Mount(path="/pages", volume="pages", read_only=True)
    web = Service(
        image=IMAGE,
        command=("httpd", "-f", "-p", "80", "-h", "/pages"),
        networks={"default": ()},
        mounts=(mount,),
        memory_mb=16,
    )
    group = ServiceGroup(services={"web": web}, volumes={"pages": str(tmp_path)})
    spec = SPEC.model_copy(update={"services": group, "read_only": False})
    async with (
        open_backend(name_of(ssh(), two)) as backend,
        backend.sandbox(spec) as one,
        backend.sandbox(spec) as two_,
    ):
        assert [len(engine.containers()) for engine in two] == [3, 3]
        for box in (one, two_):
            assert "a page of this machine" in (await box.exec("wget -q -O - http://web", check=True)).stdout
        assert len(await backend.list()) == 2
    assert [engine.containers() for engine in two] == [[], []]


async def test_a_server_that_forwards_no_sockets_is_dialled_for_each_connection(two, ssh):
    server = ssh("AllowStreamLocalForwarding no")
    async with open_backend(name_of(server, two[:1])) as backend, backend.sandbox(SPEC) as box:
        assert (await box.exec("cat", stdin=b"through docker system dial-stdio")).stdout.startswith("through")
        assert (await box.exec("sleep 30", timeout=0.5)).timed_out
        assert server.logins > 3
    assert two[0].containers() == []


@pytest.mark.parametrize("options", [(), ("AllowStreamLocalForwarding no",)])
async def test_a_dockerfile_that_needs_buildkit_is_built_on_each_host(two, ssh, calls, tmp_path, options):
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY --chmod=755 Dockerfile /{len(options)}\n")
    async with open_backend(name_of(ssh(*options), two)) as backend:
        await backend.prepare(str(tmp_path / "context"))
    assert calls.read_text() == "\n\n"


async def test_an_image_is_pulled_on_each_host(two, ssh):
    with Registry() as registry:
        registry.add("tiny", {"file": b"content"})
        image = f"{registry.address}/tiny"
        async with open_backend(name_of(ssh(), two)) as backend:
            await backend.prepare(image)
        backend = "docker:" + ",".join(f"unix://{engine.socket}" for engine in two)
        missing = await missing_images(backend, [image, "no/such"])
        assert list(missing.values()) == [["no/such"], ["no/such"]]
    for engine in two:
        engine.docker("rmi", image)


async def test_a_host_that_cannot_be_reached_is_named_with_the_reason(two, ssh, caplog):
    server = ssh()
    nobody = server.address("/nowhere.sock").replace("root@", "nobody@")
    with pytest.raises(SandboxError, match=r"no host of sandboxes answers \(ssh://nobody@.*Permission denied"):
        await open_backend(f"docker:{nobody}").__aenter__()
    async with open_backend(f"{name_of(server, two[:1])},{nobody}") as backend, backend.sandbox(SPEC) as box:
        assert (await box.exec("echo works")).stdout == "works\n"
    assert "is tried again later" in caplog.text


async def test_a_socket_of_this_machine_is_not_mounted_elsewhere(two, ssh):
    async with open_backend(name_of(ssh(), two)) as backend:
        with pytest.raises(ConfigError, match="cannot be mounted on another host"):
            backend.sandbox(SPEC.model_copy(update={"sockets": {"/run/gateway": "/run/gateway"}}))


async def test_a_connection_that_breaks_is_made_again(two, ssh, monkeypatch, caplog):
    monkeypatch.setattr(hosts, "_AGAIN_S", 0.5)
    monkeypatch.setattr(hosts, "_EVERY_S", 0.5)
    server = ssh()
    async with open_backend(name_of(server, two[:1])) as backend:
        box = await backend.sandbox(SPEC).__aenter__()
        running = asyncio.create_task(box.exec("sleep 60"))
        await asyncio.sleep(1)
        server.stop()
        with pytest.raises(SandboxError, match=r"went away|closed the connection|was lost"):
            await running
        async with asyncio.timeout(30):
            while not box.doubtful or backend.machine.cores:  # noqa: ASYNC110 - as a user sees it
                await asyncio.sleep(0.1)
        with pytest.raises(SandboxError, match="was lost: "):
            await box.exec("true")
        await box.close()
        with pytest.raises(SandboxError, match="was lost: "):
            backend.sandbox(SPEC)
        server.start()
        async with asyncio.timeout(60):
            while not backend.machine.cores or two[0].containers():  # noqa: ASYNC110 - as a user sees it
                await asyncio.sleep(0.2)
        async with backend.sandbox(SPEC) as box:
            assert (await box.exec("echo again")).stdout == "again\n"
    assert two[0].containers() == []


async def test_an_engine_that_hangs_is_lost_and_comes_back(two, ssh, monkeypatch):
    monkeypatch.setattr(hosts, "_AGAIN_S", 0.5)
    monkeypatch.setattr(hosts, "_ANSWER_S", 2.0)
    monkeypatch.setattr(hosts, "_SURE_S", 0.1)
    async with open_backend(name_of(ssh(), two)) as backend:
        boxes = [await backend.sandbox(SPEC).__aenter__() for _ in range(4)]
        running = [asyncio.create_task(box.exec("sleep 6; echo done")) for box in boxes]
        await asyncio.sleep(1)
        os.kill(two[0].pid, signal.SIGSTOP)
        try:
            late = [await box.__aenter__() for box in (backend.sandbox(SPEC), backend.sandbox(SPEC))]
            results = await asyncio.gather(*running, return_exceptions=True)
            said = [str(one) for one in results if isinstance(one, SandboxError)]
            assert [one.stdout for one in results if not isinstance(one, Exception)] == ["done\n"] * 2
            assert all("was lost: ping: the engine at ssh://" in one for one in said), said
            assert len(said) == 2
            await asyncio.gather(*(box.close() for box in boxes))
            assert (await late[0].exec("echo here")).stdout == "here\n"
        finally:
            os.kill(two[0].pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            while any(host.lost or host.abandoned for host in backend.engine_hosts):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        async with asyncio.timeout(30):  # the engine first does what it was asked before it hung
            while sum(len(engine.containers()) for engine in two) != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        for box in late:
            await box.close()
    assert [engine.containers() for engine in two] == [[], []]


OWNER = """
import asyncio, sys
from agentrl_sandbox import SandboxSpec, open_backend

async def main():
    async with open_backend(sys.argv[1]) as backend:
        spec = SandboxSpec(image=sys.argv[2], memory_mb=64, disk_mb=16, pids=32, cpus=0.5)
        for _ in range(6):
            box = await backend.sandbox(spec).__aenter__()
            await box.start("sleep 1000")
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_run_leaves_nothing_on_any_host_and_no_ssh(two, ssh):
    server = ssh()
    name = name_of(server, two)
    owner = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs
        [sys.executable, "-c", OWNER, name, IMAGE], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout.readline() == "open\n"
    assert [len(engine.containers()) for engine in two] == [3, 3]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    async with asyncio.timeout(20):
        while server.connections():  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.1)
    async with open_backend(name):
        assert [engine.containers() for engine in two] == [[], []]


class Working(Env):
    """Four commands in a sandbox."""

    ended = 0
    half = asyncio.Event()
    backend = ""

    @classmethod
    def share(cls, config):
        return SandboxPool(cls.backend, SPEC, size=16, grade=4, warm=2, create=4)

    async def reset(self, task):
        self.box = await self.enter(self.shared.acquire())
        self.steps = 0
        return task.prompt

    async def step(self, action):
        self.steps += 1
        result = await self.box.exec(f"sleep 0.2; echo {self.steps} >> steps; cat steps", check=True)
        return StepResult(result.stdout, done=self.steps == 4)

    async def score(self, trajectory: Trajectory) -> float:
        lines = await self.box.read_file("steps")
        type(self).ended += 1
        if self.ended == 2 * TASKS:
            self.half.set()
        return float(lines == "1\n2\n3\n4\n")


@pytest.mark.timeout(600)
async def test_an_engine_that_dies_takes_only_its_own_episodes(two, ssh, renderer, monkeypatch, capsys):
    """One of two engines is killed with all its containers when half of the episodes have ended."""
    monkeypatch.setattr(hosts, "_AGAIN_S", 2.0)
    server = ssh()
    Working.backend, Working.half, Working.ended = name_of(server, two), asyncio.Event(), 0
    engine = ScriptedEngine([call("work")] * 4, renderer)
    lost = set[str]()

    async def kill():
        await Working.half.wait()
        lost.update(two[0].containers())
        await asyncio.to_thread(two[0].kill)
        await asyncio.sleep(3)
        await asyncio.to_thread(two[0].start)

    async with EnvFactory(Working) as envs, asyncio.timeout(500):
        rollout = Rollout(
            envs=envs, engine=engine, renderer=renderer, options=EpisodeOptions(limits=Limits(reset_s=60, step_s=60))
        )
        killer = asyncio.create_task(kill())
        groups = await run_groups(rollout, [Task(prompt=f"work {i}", id=str(i)) for i in range(TASKS)], 4)
        await killer
        figures = envs.shared.figures()
        async with asyncio.timeout(90):  # until the engine is used again, and what was left there is gone
            while any(host.lost or host.abandoned for host in envs.shared._backend.engine_hosts):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    played = list(chain(*groups))
    again = [one for one in played if "restarted" in one.info]
    with capsys.disabled():
        print(f"\n{len(played)} episodes, {len(lost)} containers killed, {len(again)} played again: {figures}")
        print("\n".join(sorted({str(one.info["restarted"]).replace(one.session_id, "") for one in again})[:3]))
    assert len(played) == 4 * TASKS
    assert all(one.is_valid and one.reward == 1.0 for one in played)
    assert 0 < len(again) <= len(lost)
    assert all(len(one.info["restarted"]) == 1 and one.session_id.endswith("-again") for one in again)
    assert [engine.containers() for engine in two] == [[], []]


def certificates(folder):
    """ca.pem, cert.pem and key.pem for both sides, as Docker names them."""
    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=ca", folder=folder)
    openssl("req", *key, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=engine", folder=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    signing = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "names"]
    openssl("x509", "-req", "-in", "request", "-out", "cert.pem", *signing, folder=folder)


def openssl(*arguments, folder):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


async def test_an_engine_with_tls(tmp_path, monkeypatch, calls):
    needs("dockerd", "openssl", "busybox")
    certificates(tmp_path)
    flags = [f"--tls{option}={tmp_path}/{file}" for option, file in CERTIFICATES.items()]
    port = free_port()
    engine = Daemon(f"--host=tcp://127.0.0.1:{port}", "--tlsverify", *flags)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    try:
        engine.start()
        engine.import_image()
        async with open_backend(f"docker:tcp://127.0.0.1:{port}") as backend, backend.sandbox(SPEC) as box:
            sent = bytes(range(65, 91)) * 40_000
            assert (await box.exec("cat; sleep 1; cat", stdin=sent, max_output=4 << 20)).stdout.encode() == sent
            await box.write_file("file", sent * 4)
            assert (await box.exec("sha256sum < file; sleep 1; echo end")).stdout.endswith("end\n")
            assert await box.read_bytes("file") == sent * 4
            assert (await box.exec("sleep 30", timeout=0.5)).timed_out
            (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY --chmod=755 Dockerfile /x\n")
            await backend.prepare(str(tmp_path))
        (tmp_path / "cert.pem").unlink()
        with pytest.raises(SandboxError, match=r"no host of sandboxes answers .*certificate"):
            await open_backend(f"docker:tcp://127.0.0.1:{port}").__aenter__()
    finally:
        engine.close()
