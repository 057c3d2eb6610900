"""Attacks that reach for what is not the sandbox's: the machine's files, its processes, its network, its kernel."""

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile

import pytest

from tests.sandbox.attacks.arena import ISOLATED

pytestmark = pytest.mark.parametrize("backend", ISOLATED, indirect=True)

GONE_THROUGH = "GOT THROUGH"


def through(said: dict[str, str]) -> dict[str, str]:
    return {name: what for name, what in said.items() if what.startswith(GONE_THROUGH)}


def needs_root(backend) -> None:
    if backend.name != "docker":
        pytest.skip(f"{backend.name} has one user")


def summary(said: dict[str, str]) -> str:
    """The errors and how often each."""
    answers = list(said.values())
    return f"{len(said)} tries: " + ", ".join(f"{answers.count(one)} {one}" for one in sorted(set(answers)))


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_writes_outside_of_the_writable_folders(field, backend, user, note):
    if user == "root":
        needs_root(backend)
    said = await field.tries("writes", user=user, timeout=60)
    note(summary(said))
    # In bubblewrap the first process is the agent's, else root's; so is /dev there, which is in memory.
    own = ("/proc/1/", f"/dev/{field.token}") if user == "root" or backend.name == "bubblewrap" else ("nothing",)
    assert not [path for path in through(said) if not path.startswith(own)]
    assert len(said) > 60


async def test_reads_of_the_machine_and_of_a_neighbour(field, note):
    mark = f"mark{field.token}"
    with _marked_process(mark), tempfile.NamedTemporaryFile(prefix=mark), _listening(f"\0{mark}"):
        await field.neighbour.write_file(f"/tmp/{mark}", mark)
        secret = await field.neighbour.start(f"exec -a {mark} sleep 600", env={"SECRET": mark})
        said = await field.tries("reads", mark, timeout=120)
        await secret.kill()
    await field.neighbour.exec(f"rm /tmp/{mark}")
    note(str(said))
    assert int(said.pop("processes")) < 10
    assert not through(said)
    for name in ("cmdline and environ", "other roots", "files", "sockets", "addresses"):
        assert said[name] == "nothing", said


@contextlib.contextmanager
def _marked_process(mark):
    """A process of this machine with the mark as an argument and in its environment."""
    with subprocess.Popen(["sleep", "601"], env={"SECRET": mark, "PATH": os.environ["PATH"]}) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _listening(name):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        yield


@pytest.mark.parametrize("spec", [{}, {"network": ("pypi.org", "*.example.org")}], indirect=True)
async def test_network(field, backend, tmp_path, note):
    """Nothing that listens on this machine hears of the sandbox."""
    heard = []

    def hear(reader, writer):
        heard.append(writer.get_extra_info("sockname"))
        writer.close()

    path = tmp_path / "socket"
    abstract = f"agentrl-{field.token[::-1]}"
    servers = [
        await asyncio.start_server(hear, "0.0.0.0", 0),
        await asyncio.start_unix_server(hear, path),
        await asyncio.start_unix_server(hear, f"\0{abstract}"),
    ]
    port = servers[0].sockets[0].getsockname()[1]
    engine = os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
    own = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    said = await field.tries("network", str(port), abstract, f"{path} {engine}", " ".join(own), timeout=60)
    for server in servers:
        server.close()
    note(summary(said))
    assert said.pop("interfaces") == "lo"
    assert not heard
    if backend.name == "docker":
        said.pop("vsock")  # the filter of engines before 23 lets it be made; it reaches a hypervisor, if anything
    assert not through(said)


async def test_privilege(field, backend, note):
    said = await field.tries("privilege", timeout=60)
    note(f"{said['Seccomp']=}, {said['NoNewPrivs']=}; {summary(said)}")
    assert "0" not in said["Uid"].split()
    assert all(int(said[f"Cap{kind}"], 16) == 0 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert (said["NoNewPrivs"], said["Seccomp"], said["all filtered"]) == ("1", "2", "True")
    harmless = {"kill 1", "stop 1"}  # the kernel drops what the first process's own namespace sends it
    assert said["limits of 1"] == "True"
    if backend.name == "bubblewrap":
        harmless |= {"ptrace 1"}  # it is the same user's, with the same filter and limits
    assert not set(through(said)) - harmless, said
    assert await field.usable() == "usable"


async def test_root_inside_has_no_capabilities(field, backend, note):
    needs_root(backend)
    said = await field.tries("privilege", user="root", timeout=60)
    note(f"{said['Seccomp']=}, {said['NoNewPrivs']=}; {summary(said)}")
    assert all(int(said[f"Cap{kind}"], 16) == 0 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
    own = {"setuid 0", "setuid programs", "own setuid program", "kill 1", "stop 1"}  # it is root already
    assert not set(through(said)) - own - {"ptrace 1", "read memory of 1"}, said


async def test_setuid_shell_of_root_does_not_make_an_agent_root(field, backend, note):
    """Of two users in a sandbox, the first leaves a shell with root's rights to the second."""
    needs_root(backend)
    await field.box.exec("cp /bin/bash /tmp/shell; chmod 6755 /tmp/shell", user="root", check=True)
    result = await field.box.exec("/tmp/shell -p -c 'id -u; id -g'")
    note(repr(result))
    assert "0" not in result.stdout.split()


async def test_clock_and_priorities_are_not_its_own(field, note):
    result = await field.box.exec(
        "date -s '2001-01-01'; hwclock -w; nice -n -5 true; chrt -f 50 true; renice -n -5 $$; ulimit -r 10; "
        "echo -900 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj; date +%Y"
    )
    note(repr(result.stderr))
    assert int(result.stdout.split()[-1]) > 2020
    assert int(result.stdout.split()[-2]) >= 0
    assert result.stderr.count("ermi") + result.stderr.count("not found") >= 3
