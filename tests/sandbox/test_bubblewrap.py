"""Bubblewrap sandboxes: what the suite of all back ends does not ask."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import survey
from agentrl_sandbox.bubblewrap import box as box_module
from agentrl_sandbox.bubblewrap import cgroups, registry
from agentrl_sandbox.bubblewrap.cgroups import Cgroups
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.backends.inside import count, long_time, started

pytestmark = pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)

ESCAPES = ["{} & wait", "setsid {} & wait", "(setsid sh -c '{} & {}' &) ; wait; {}"]
SOCKET = "import socket; socket.socket({}, socket.SOCK_DGRAM)"
OWNER = """
import asyncio, pathlib, sys
from agentrl_sandbox import SandboxSpec, open_backend
from agentrl_sandbox.bubblewrap import registry
registry.folder = lambda: pathlib.Path(sys.argv[1])
async def main():
    async with open_backend("bubblewrap") as backend:
        boxes = [backend.sandbox(SandboxSpec()) for _ in range(4)]
        for box in boxes:
            await box.__aenter__()
            await box.start("setsid sleep 1000 & sleep 1000")
        print(*(box._box.first for box in boxes), flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.fixture
def no_cgroups(monkeypatch):
    monkeypatch.setattr(Cgroups, "make", classmethod(lambda cls, name, spec: None))


@pytest.mark.thorough
@pytest.mark.parametrize("how", ESCAPES)
async def test_without_cgroups_a_timeout_kills_the_whole_tree_too(backend, no_cgroups, how):
    word, other = long_time(), long_time()
    async with backend.sandbox(SandboxSpec()) as box:
        await box.exec(f"sleep {other} &", check=True)
        process = await box.start(how.replace("{}", f"sleep {word}"))
        await started(box, word)
        assert (await process.wait(0.1)).timed_out
        assert (await count(box, word), await count(box, other)) == (0, 1)


@pytest.mark.thorough
async def test_without_cgroups_commands_answer_as_they_do(backend, no_cgroups):
    async with backend.sandbox(SandboxSpec(memory_mb=64, pids=20)) as box:
        assert await box.exec("sleep 100 & echo out; exit 3") == (3, "out\n", "")
        assert (await box.exec("kill -9 $$")).exit_code == 128 + 9
        assert (await box.exec("python3 -c \"x = b'x' * (200 << 20)\"")).exit_code
        assert (await box.exec("for n in $(seq 40); do sleep 30 & done; wait", timeout=3)).exit_code
        assert await box.exec("echo still here", check=True, timeout=20)


@pytest.mark.thorough
async def test_kill_9_of_the_owner_leaves_nothing(backend, tmp_path, monkeypatch):
    """The registry is the test's own: the reaper of another process would remove what this one is to find."""
    monkeypatch.setattr(registry, "folder", lambda: tmp_path)
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, tmp_path, stdout=subprocess.PIPE)
    pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
    left = [entry for entry in registry.entries() if entry.pid in pids]
    assert len(left) == len(pids) == 4
    owner.kill()
    await owner.wait()
    for _ in range(200):
        if not any(map(registry.start_of, pids)):
            break
        await asyncio.sleep(0.02)
    assert not any(map(registry.start_of, pids))
    names = {entry.sandbox_id for entry in left}
    assert names <= {found.sandbox_id for found in await survey.found("bubblewrap") if found.gone}
    assert await survey.collect("bubblewrap") == len(names)
    assert not names & {found.sandbox_id for found in await backend.list()}
    assert not any(map(os.path.exists, [folder for entry in left for folder in entry.cgroups]))
    assert not any((registry.folder() / f"{entry.sandbox_id}.json").exists() for entry in left)


async def test_a_box_that_its_commands_end_says_so(backend):
    async with backend.sandbox(SandboxSpec()) as box:
        with pytest.raises(SandboxKilledError, match=box.sandbox_id):
            await box.exec("kill -9 2; sleep 30")
        with pytest.raises(SandboxKilledError, match="its own commands ended it"):
            await box.exec("true")


@pytest.mark.parametrize("slow", [False, True])
async def test_a_box_dies_with_what_holds_its_stdin(backend, slow, monkeypatch):
    if slow:  # a busy host ends the command before the process that holds the box open
        monkeypatch.setattr(box_module, "_has_ended", lambda handle: False)
    async with backend.sandbox(SandboxSpec()) as box:
        os.kill(box._box.first, signal.SIGKILL)
        with pytest.raises(SandboxKilledError):
            await asyncio.wait_for(box.exec("sleep 30"), 10)


@pytest.mark.parametrize("family", [40, 17, 38, 16 + 100])
async def test_sockets_that_know_no_namespaces_are_refused(backend, family):
    async with backend.sandbox(SandboxSpec()) as box:
        said = await box.exec(f'python3 -c "{SOCKET.format(family)}"')
        assert "Operation not permitted" in said.stderr


async def test_nothing_of_the_host_is_in_the_command_lines(backend):
    async with backend.sandbox(SandboxSpec()) as box:
        shown = await box.exec("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
        assert "--ro-bind" not in shown.stdout
        assert str(Path.home()) not in shown.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
async def test_a_box_of_root_runs_as_nobody_of_the_host(backend):
    async with backend.sandbox(SandboxSpec()) as box, backend.sandbox(SandboxSpec()) as other:
        process = await box.start("sleep 100")
        uids = {os.stat(f"/proc/{one._box.first}").st_uid for one in (box, other)}
        assert len(uids) == 2
        assert min(uids) >= 1_600_000_000
        assert (await box.exec("cat /etc/shadow; echo x > /proc/sys/kernel/core_pattern")).exit_code
        await process.kill()


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "root"},
        {"read_only": False},
        {"workdir": "/"},
        {"workdir": "work"},
        {"sockets": {"/run/x": "/nowhere"}},
    ],
)
async def test_a_spec_that_cannot_be_enforced_is_refused(backend, changes):
    with pytest.raises(ConfigError):
        backend.sandbox(SandboxSpec(**changes))


def image(folder):
    """A root file system: busybox alone."""
    busybox = Path("/bin/busybox")
    if not busybox.exists():
        pytest.skip("there is no static busybox")
    (folder / "bin").mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "bin" / "busybox").write_bytes(busybox.read_bytes())
    (folder / "bin" / "busybox").chmod(0o755)
    (folder / "bin" / "sh").symlink_to("busybox")
    for name in ("passwd", "group", "hosts"):
        (folder / "etc" / name).touch()
    (folder / "who").write_text("an image")
    return folder


@pytest.fixture
def open_path(tmp_path):
    """A folder that every user can enter: pytest's own are closed."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
async def test_an_image_is_a_folder_or_an_archive(backend, open_path, packed, monkeypatch):
    monkeypatch.setattr("agentrl_sandbox.bubblewrap.root._cache", lambda: open_path / "cache")
    source = image(open_path / "image")
    if packed:
        with tarfile.open(open_path / "image.tar", "w") as tar:
            tar.add(source, ".")
        source = open_path / "image.tar"
    await backend.prepare(str(source))
    async with backend.sandbox(SandboxSpec(image=str(source))) as box:
        assert (await box.exec("busybox cat /who; busybox id -un")).stdout == "an imageagent\n"
        assert (await box.exec("busybox touch /new /who")).exit_code == 1


def test_the_filter_is_made_once(backend):
    from agentrl_sandbox.bubblewrap import seccomp

    assert seccomp.program() is seccomp.program()
    assert len(seccomp.program()) % 8 == 0
    assert ctypes.sizeof(ctypes.c_void_p) == 8


@pytest.mark.thorough
async def test_cgroups_of_no_box_are_shown_and_removed(backend, monkeypatch):
    """Their owner was killed before it wrote down what it had made."""
    made = Cgroups.make(f"{cgroups.NAME}-bubblewrap-{os.urandom(8).hex()}", SandboxSpec())
    if made is None:
        pytest.skip("no cgroup can be made here")
    names = {str(folder) for folder in made.folders}
    made.command()
    try:
        assert not names & {one.name for one in await survey.left("bubblewrap")}  # it may be on its way to a box
        monkeypatch.setattr(cgroups, "_NEW_S", -1.0)
        async with backend.sandbox(SandboxSpec()) as box:
            assert names <= {one.name for one in await survey.left("bubblewrap")}
            assert names <= {one.name for one in await survey.tidy("bubblewrap")}
            assert await box.exec("echo alive") == (0, "alive\n", "")
        assert not any(folder.exists() for folder in made.folders)
    finally:
        made.remove()


@pytest.mark.thorough
async def test_a_box_whose_time_was_over_is_not_the_agent_s_fault(backend):
    async with backend.sandbox(SandboxSpec(lifetime_s=0.5)) as box:
        running = asyncio.create_task(box.exec("sleep 60"))
        await asyncio.sleep(0.7)
        await survey.collect("bubblewrap")
        for work in (running, box.exec("true")):
            with pytest.raises(SandboxError, match=r"removed from outside: its lifetime_s=0\.5 was over") as caught:
                await work
            assert not isinstance(caught.value, SandboxKilledError)
