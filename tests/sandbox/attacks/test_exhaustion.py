"""Attacks that use up what the machine has: processes, memory, disk, output."""

import asyncio
import time

import pytest

from agentrl.sandbox import SandboxKilledError
from tests.sandbox.attacks.arena import ISOLATED, SMALL, available_memory, own_memory

pytestmark = pytest.mark.parametrize("backend", ISOLATED, indirect=True)

ROOMY = {"memory_mb": 256}
KILLED = 128 + 9
MB = 1 << 20


@pytest.mark.parametrize("spec", [ROOMY], indirect=True)
@pytest.mark.parametrize("how", ["plain", "hidden"])
async def test_fork_bomb(field, how, note):
    bomb = asyncio.create_task(field.attack("fork_bomb", how, timeout=3))
    most = 0
    while not bomb.done():
        most = max(most, field.machine.processes())
        await field.check_neighbour()
        await asyncio.sleep(0.1)
    result = (await asyncio.gather(bomb, return_exceptions=True))[0]
    assert most <= SMALL.pids
    if isinstance(result, BaseException):
        assert isinstance(result, SandboxKilledError)
    else:
        assert result.timed_out
    assert await field.machine.cleared()
    note(f"{most} processes at most, none after the deadline; recorded: {result!r}; then {await field.usable()}")


@pytest.mark.parametrize("how", ["one", "many", "memfd", "shared"])
async def test_memory_hog(field, how, note):
    before = available_memory()
    hog = asyncio.create_task(field.attack("memory_hog", how, timeout=30))
    most = 0
    while not hog.done():
        most = max(most, before - available_memory())
        await asyncio.sleep(0.05)
    result = (await asyncio.gather(hog, return_exceptions=True))[0]
    then = await field.usable()
    note(f"{result!r}; then {then}")
    assert most < 600 * MB
    if isinstance(result, BaseException):
        assert isinstance(result, SandboxKilledError)
        assert "memory_mb=64" in str(result)
    else:
        assert result.exit_code == KILLED
        assert "memory_mb=64" in result.stderr
    assert then == "usable" or "memory_mb=64" in then


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
async def test_disk_filler(field, folder, note):
    said = await field.tries("fill", "bytes", folder)
    note(f"{said['fill']} after {int(said['made']) / MB:.0f} MB")
    assert said["fill"] in ("ENOSPC", "EROFS", "EACCES", "ENOENT")
    assert int(said["made"]) <= SMALL.disk_mb * MB
    assert await field.usable() == "usable"
    if folder == "/work":
        with pytest.raises(OSError, match="No space left"):
            await field.box.write_file("more", b"x" * MB)


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
async def test_filler_of_empty_files(field, folder, note):
    result = await field.attack("fill", "inodes", folder, timeout=60)
    note(repr(result))
    assert "GOT THROUGH" not in result.stdout
    assert result.exit_code == KILLED or "ENOSPC" in result.stdout or "made\t0" in result.stdout


@pytest.mark.parametrize("spec", [{"disk_mb": 400, "file_mb": 300}], indirect=True)
async def test_files_that_count_as_memory(field, note):
    try:
        result = await field.box.exec("head -c 280M /dev/zero > /work/big", timeout=30)
        told = result.stderr if result.exit_code else "memory_mb=64"
    except SandboxKilledError as exc:
        told = str(exc)
    then = await field.usable()
    note(f"{told}; then {then}")
    assert "memory_mb=64" in told
    assert then == "usable" or "memory_mb=64" in then


async def test_file_larger_than_allowed(field, note):
    result = await field.box.exec("head -c 12M /dev/zero > /work/big; echo $?; wc -c < /work/big")
    note(repr(result))
    assert result.stdout.split()[0] != "0"
    assert result.stdout.split()[1] == str(SMALL.file_mb * MB)


async def test_a_gigabyte_of_output(field, note):
    most, before, received = 0, own_memory(), 0

    def watch(stream, data):
        nonlocal most, received
        received += len(data)
        most = max(most, own_memory() - before)

    begun = time.monotonic()
    result = await field.attack("flood", timeout=100, max_output=10_000, on_output=watch)
    note(
        f"{received / MB:.0f} MB in {time.monotonic() - begun:.1f} s; this process grew by {most / MB:.1f} MB; "
        f"truncated={result.truncated}, {len(result.stdout)} + {len(result.stderr)} characters kept"
    )
    assert (result.exit_code, result.truncated, received) == (0, True, 1024 * MB)
    assert most < 16 * MB
    assert len(result.stdout) < 10_100 > len(result.stderr)


async def test_zombies(field, note):
    count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"
    await field.attack("processes", "zombies")
    before = (await field.box.exec(count)).stdout.strip()
    await field.box.exec(f"pkill -KILL -f {field.token}")
    for _ in range(20):
        if (after := (await field.box.exec(count)).stdout.strip()) == "0":
            break
        await asyncio.sleep(0.1)
    note(f"{before} while their parent lives, {after} after it; the sandbox is usable all the time")
    assert (before, after) == ("40", "0")


async def test_full_process_table(field, note):
    """The sandbox's owner asks for everything while there is no room for another process."""
    await field.attack("processes", "full")
    said = {}
    for name, asked in {
        "exec": lambda: field.box.exec("echo here; sleep 30", timeout=1),
        "read": lambda: field.box.read_file("/etc/passwd"),
        "write": lambda: field.box.write_file("new", "x"),
        "snapshot": lambda: field.box.snapshot(),
        "ping": lambda: field.box.ping(),
    }.items():
        begun = time.monotonic()
        try:
            said[name] = repr(await asked())[:120]
        except SandboxKilledError as exc:
            said[name] = str(exc)
        assert time.monotonic() - begun < 30, said
    note(str(said))
    assert "pids" in said["exec"] + said["write"] or "fork" in said["exec"] + said["write"], said


async def test_endless_signals(field, note):
    """A process kills all that it may, again and again, while the sandbox's owner asks for things."""
    said = {}
    for name, asked in {
        "attack": lambda: field.attack("processes", "signals"),
        "exec": lambda: field.box.exec("sleep 30", timeout=3),
        "read": lambda: field.box.read_file("/etc/passwd"),
        "snapshot": lambda: field.box.snapshot(),
    }.items():
        begun = time.monotonic()
        try:
            said[name] = repr(await asked())[:60]
        except SandboxKilledError as exc:
            said[name] = f"{type(exc).__name__}: {exc}"
        assert time.monotonic() - begun < 30, said
    note(str(said))


@pytest.mark.parametrize("how", ["daemon", "orphan", "stopped", "stubborn"])
async def test_command_that_will_not_end(field, how, note):
    result, then = None, ""
    try:
        result = await field.attack("linger", how, timeout=1.5)
        assert result.timed_out or how in ("orphan", "stopped")
    except SandboxKilledError as exc:
        then = str(exc)
    alive = field.machine.processes()
    then = then or await field.usable()
    note(f"{result!r}; {alive} processes left; then {then}")
    assert await field.machine.cleared()
    assert then == "usable" or "sandbox" in then


async def test_core_dump(field, note):
    result = await field.box.exec(
        "ulimit -c unlimited; ulimit -c; python3 -c 'import ctypes; ctypes.string_at(0)'; echo $?; ls -A | grep -c core"
    )
    note(repr(result))
    assert "139" in result.stdout
    assert result.stdout.split()[-1] == "0"
