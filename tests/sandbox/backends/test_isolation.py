"""What a back end for models' code keeps apart by default. Attacks that take longer are in tests/sandbox/attacks."""

import asyncio
import os

import pytest

from agentrl.errors import SandboxError
from tests.sandbox.backends.inside import ISOLATED

pytestmark = pytest.mark.parametrize("backend", ISOLATED, indirect=True)


async def test_the_user_is_unprivileged_and_named(box):
    assert (await box.exec("id -un; echo $HOME")).stdout.splitlines() == ["agent", "/tmp"]
    assert (await box.exec("id -u")).stdout != "0\n"
    status = (await box.exec("cat /proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


async def test_the_host_cannot_be_seen(box, tmp_path):
    (tmp_path / "secret").write_text("secret")
    assert (await box.exec(f"cat {tmp_path}/secret; ls ~root/.[a-z]*")).stdout == ""
    assert (await box.exec("hostname")).stdout.strip() != os.uname().nodename
    pids = (await box.exec("ls -d /proc/[0-9]* | wc -l")).stdout
    assert int(pids) < 12


async def test_there_is_no_network_but_loopback(box):
    assert (
        await box.exec("ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    ).stdout in (
        "lo\n",
        "",
    )
    dial = "import socket; socket.create_connection(('{}', {}), 2)"
    result = await box.exec(f'python3 -c "{dial.format("10.0.0.1", 80)}"')
    assert "unreachable" in result.stderr
    talk = (
        "import socket; a = socket.create_server(('127.0.0.1', 0)); "
        "b = socket.create_connection(a.getsockname()); print('talked')"
    )
    assert (await box.exec(f'python3 -c "{talk}"')).stdout == "talked\n"


async def test_the_root_is_read_only_and_the_writable_folders_are_not(box):
    for folder in ("/usr", "/etc", "/"):
        assert (await box.exec(f"touch {folder}/new")).exit_code == 1
    assert (await box.exec("touch /work/new /tmp/new; [ -w ~ ]; stat -c %a /tmp")).exit_code == 0


@pytest.mark.parametrize(
    "call",
    ["unshare -r true", "unshare -n true", "mount -t tmpfs x /tmp", "chroot / true", "dmesg -n 1", "mknod d b 1 1"],
)
async def test_dangerous_calls_are_refused(box, call):
    assert (await box.exec(call)).exit_code


@pytest.mark.parametrize("spec", [{"memory_mb": 64}], indirect=True)
async def test_too_much_memory_ends_the_command_and_nothing_else(box):
    result = await box.exec("python3 -c \"x = b'x' * (200 << 20)\"", timeout=30)
    assert result.exit_code == 128 + 9 or "MemoryError" in result.stderr
    assert await box.exec("echo still here", check=True) == (0, "still here\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [{"pids": 32}], indirect=True)
async def test_too_many_processes_harm_that_sandbox_alone(box, backend, spec):
    async with backend.sandbox(spec) as neighbour:
        bomb = asyncio.create_task(box.exec(":(){ :|:& };:; sleep 30", timeout=2))
        assert await neighbour.exec("echo fine", check=True) == (0, "fine\n", "")
        with pytest.raises(SandboxError) if (await _raised(bomb)) else _nothing():
            await box.exec("true", check=True, timeout=20)
        assert await neighbour.exec("echo fine", check=True) == (0, "fine\n", "")


async def _raised(task):
    """A back end may kill the sandbox if it has no room left for what kills the command."""
    return isinstance((await asyncio.gather(task, return_exceptions=True))[0], SandboxError)


class _nothing:
    def __enter__(self): ...

    def __exit__(self, *exc): ...


async def test_sandboxes_share_nothing(box, backend, spec):
    async with backend.sandbox(spec) as other:
        assert other.sandbox_id != box.sandbox_id
        await box.exec("echo mine > /tmp/file; echo mine > /work/file; echo mine > /dev/shm/file", check=True)
        assert (await other.exec("cat /tmp/file /work/file /dev/shm/file")).stdout == ""


@pytest.mark.parametrize("spec", [{"sockets": {}}])
async def test_a_socket_of_the_host_is_reached_by_its_path(backend, tmp_path, spec):
    from agentrl_sandbox.spec import SandboxSpec

    async def answer(reader, writer):
        writer.write(b"from the host: " + await reader.readline())
        writer.close()

    path = f"/tmp/agentrl-test-{os.getpid()}.sock"  # tmp_path is too long for a socket
    server = await asyncio.start_unix_server(answer, path)
    os.chmod(path, 0o666)
    try:
        async with backend.sandbox(SandboxSpec(sockets={"/run/gateway.sock": path})) as box:
            dial = (
                "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/gateway.sock'); "
                "s.sendall(b'hello\\n'); print(s.recv(99).decode())"
            )
            assert (await box.exec("python3 -", stdin=dial.encode(), check=True)).stdout == "from the host: hello\n\n"
    finally:
        server.close()
        os.unlink(path)
