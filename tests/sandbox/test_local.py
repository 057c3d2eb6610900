"""LocalSandbox: real processes, real files, and nothing left of either."""

import asyncio
import contextlib
import errno
import os
import shlex
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox import LocalSandbox
from agentrl_sandbox.local import sandbox as local
from agentrl_sandbox.local.sandbox import belonging

HAS_PROC = os.path.isdir("/proc/self")


@pytest.fixture
async def box():
    async with LocalSandbox(trusted=True) as sandbox:
        yield sandbox


def alive(pid: int) -> bool:
    """Whether a process runs. One that is dead and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" if HAS_PROC else _signal(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def processes() -> list[tuple[int, str]]:
    """Every process with its command line."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.append((int(name), Path("/proc", name, "cmdline").read_text(errors="replace")))
    return found


async def gone(*pids: int) -> bool:
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def released(sandbox) -> bool:
    for _ in range(100):
        if not sandbox.processes:
            return True
        await asyncio.sleep(0.02)
    return False


async def pid_in(sandbox, path: str) -> int:
    for _ in range(200):
        file = sandbox.root / path
        if file.exists() and (text := file.read_text().strip()):
            return int(text)
        await asyncio.sleep(0.02)
    raise AssertionError(f"no command wrote {path}")


# --- trust, users, environment ----------------------------------------------------------------------------------------


def test_it_asks_for_trust():
    with pytest.raises(ConfigError, match=r"isolates nothing.*pass trusted=True"):
        LocalSandbox()


async def test_only_the_user_it_runs_as_is_taken(box):
    me = (await box.exec("id -un", check=True)).stdout.strip()
    assert (await box.exec("id -un", user=me)).stdout.strip() == me
    for use in (
        lambda: box.exec("true", user="other"),
        lambda: box.write_file("/a", "x", user="other"),
        lambda: box.read_file("/a", user="other"),
    ):
        with pytest.raises(ConfigError, match="cannot act as 'other'"):
            await use()


async def test_a_uid_without_a_name_is_a_user_too(box, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(local.pwd, "getpwuid", unknown)
    assert await box.exec("true", user=str(os.getuid()), check=True)


async def test_the_environment_is_not_inherited(box, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    stdout = (await box.exec("env", env={"MINE": "1"}, check=True)).stdout
    assert "SOME_API_KEY" not in stdout
    assert "MINE=1" in stdout
    assert f"HOME={box.root}\n" in stdout
    assert f"PATH={os.environ['PATH']}\n" in stdout


async def test_a_command_starts_in_the_root_which_is_a_private_folder(box):
    assert (await box.exec("pwd")).stdout == f"{box.root}\n"
    assert box.root.stat().st_mode & 0o777 == 0o700


async def test_files_and_commands_see_the_same_folder(box):
    await box.write_file("/workspace/in", "hello")
    await box.exec("tr a-z A-Z < in > ../out", cwd="/workspace", check=True)
    assert await box.read_file("/out") == "HELLO"


async def test_a_missing_cwd_is_said(box):
    await box.write_file("/file", "")
    for cwd in ("/nowhere", "/file"):
        with pytest.raises(FileNotFoundError, match="no such folder in the sandbox"):
            await box.exec("true", cwd=cwd)


async def test_death_by_signal_is_told_as_a_shell_does(box):
    assert (await box.exec("kill -9 $$")).exit_code == 128 + 9


async def test_no_process_to_be_had_is_an_infrastructure_error(box, monkeypatch):
    async def refused(*args, **kwargs):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio.get_running_loop(), "subprocess_exec", refused)
    with pytest.raises(SandboxError, match=r"cannot start a shell: Resource temporarily unavailable"):
        await box.exec("true")
    assert await released(box)


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["/etc", "..", "../.."])
async def test_a_link_that_leads_out_is_refused(box, link):
    os.symlink(link, box.root / "out")
    with pytest.raises(PermissionError, match="leads out of the sandbox"):
        await box.read_file("/out/hostname")
    with pytest.raises(PermissionError, match="leads out of the sandbox"):
        await box.write_file("/out/agentrl-was-here", "x")
    with pytest.raises(PermissionError, match="leads out of the sandbox"):
        await box.exec("true", cwd="/out")


async def test_a_file_link_that_leads_out_is_refused(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    os.symlink(secret, box.root / "link")
    with pytest.raises(PermissionError):
        await box.read_file("/link")
    with pytest.raises(PermissionError):
        await box.write_file("/link", "overwritten")
    assert secret.read_text() == "mine"


async def test_a_link_to_a_sibling_with_a_longer_name_is_refused(box):
    os.symlink(f"{box.root}-sibling", box.root / "link")
    with pytest.raises(PermissionError):
        await box.write_file("/link/a", "x")


async def test_a_link_within_is_followed(box):
    await box.write_file("/a/file", "text")
    os.symlink("a", box.root / "b")
    assert await box.read_file("/b/file") == "text"


async def test_what_is_no_file_is_refused_at_once(box):
    os.mkfifo(box.root / "pipe")
    (box.root / "folder").mkdir()
    os.symlink("loop", box.root / "loop")
    async with asyncio.timeout(5):  # to open the pipe in the plain way would wait for ever
        for path in ("/pipe", "/folder", "/loop"):
            with pytest.raises(OSError, match=path) as read:
                await box.read_file(path)
            with pytest.raises(OSError, match=path):
                await box.write_file(path, "x")
            assert read.value.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENOENT)


async def test_errors_do_not_show_where_the_sandbox_lies(box):
    await box.write_file("/file", "")
    for use in (lambda: box.read_file("/file/x"), lambda: box.write_file("/file/x", ""), lambda: box.read_file("/no")):
        with pytest.raises(OSError, match="'/") as caught:
            await use()
        assert str(box.root) not in str(caught.value)


# --- output -----------------------------------------------------------------------------------------------------------


async def test_endless_output_takes_bounded_memory(box):
    tracemalloc.start()
    try:
        result = await box.exec("yes | head -c 50000000; echo done >&2", max_output=1000, timeout=20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert (result.exit_code, result.stderr, result.truncated) == (0, "done\n", True)
    assert result.stdout == "y\n" * 250 + "\n[... 49,999,000 bytes left out ...]\n" + "y\n" * 250


async def test_what_came_before_a_timeout_is_kept(box):
    result = await box.exec("echo begun; sleep 30", timeout=0.5)
    assert (result.stdout, result.timed_out) == ("begun\n", True)


async def test_a_command_that_ignores_its_stdin_is_fine(box):
    assert await box.exec("echo hi", stdin=b"x" * 1_000_000) == (0, "hi\n", "")


# --- nothing outlives its time ----------------------------------------------------------------------------------------


async def test_timeout_kills_the_whole_group_even_if_it_ignores_signals(box):
    result = await box.exec("trap '' TERM HUP; (echo $BASHPID > child; sleep 30) & echo $$ > parent; wait", timeout=0.5)
    assert result.timed_out
    assert await gone(await pid_in(box, "child"), await pid_in(box, "parent"))


async def test_cancellation_kills_the_whole_group(box):
    task = asyncio.create_task(box.exec("sleep 30 & echo $! > child; echo $$ > parent; wait"))
    child, parent = await pid_in(box, "child"), await pid_in(box, "parent")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(child, parent)


async def test_cancellation_at_any_moment_of_the_start_leaves_nothing(box):
    for steps in range(12):
        task = asyncio.create_task(box.exec("sleep 30 & sleep 30 & wait"))
        for _ in range(steps):
            await asyncio.sleep(0)
            time.sleep(0.01)  # noqa: ASYNC251 - holds up the loop, not the shell, which has children by now
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await released(box)
    assert not belonging({f"AGENTRL_SANDBOX={box.sandbox_id}".encode()}, box.root)


async def test_the_background_lives_until_close():
    async with LocalSandbox(trusted=True) as box:
        begun = time.monotonic()
        await box.exec("(while :; do echo tick; sleep 0.05; done) & echo $! > pid", check=True)  # holds the pipes
        assert time.monotonic() - begun < 5
        pid = await pid_in(box, "pid")
        await asyncio.sleep(0.3)
        assert alive(pid)  # a closed pipe would have ended it
    assert await gone(pid)


@pytest.mark.skipif(not HAS_PROC, reason="detached processes are found through /proc")
@pytest.mark.parametrize("how", ["setsid sh -c", "setsid nohup sh -c"])
async def test_close_kills_what_left_its_group(how):
    async with LocalSandbox(trusted=True) as box:
        script = shlex.quote("echo $$ > pid; exec sleep 30")
        await box.exec(f"{how} {script} < /dev/null > /dev/null 2>&1 &", check=True)
        pid = await pid_in(box, "pid")
        assert alive(pid)
    assert not alive(pid)  # close waits for their end


@pytest.mark.skipif(not HAS_PROC, reason="detached processes are found through /proc")
@pytest.mark.parametrize(
    "how",
    [
        "env -i setsid sleep 30",
        "mkdir sub && cd sub && env -i setsid sleep 30",
        "env -i setsid sh -c 'cd / && exec sleep 30'; true",
        "env -i setsid sh -c '(cd / && exec setsid sleep 30) & wait'",
    ],
)
async def test_close_kills_what_dropped_its_environment(how):
    async with LocalSandbox(trusted=True) as box:
        name = f"30.{time.monotonic_ns()}"
        await box.exec(f"({how.replace('30', name)}) > /dev/null 2>&1 < /dev/null & sleep 0.2", check=True)
        sleeping = [pid for pid in processes() if pid[1] == f"sleep\0{name}\0"]
        assert sleeping
    assert not any(alive(pid) for pid, _ in sleeping)


@pytest.mark.skipif(not HAS_PROC, reason="detached processes are found through /proc")
async def test_close_spares_a_persons_shell_in_the_folder():
    async with LocalSandbox(trusted=True) as box:
        person, terminal = os.openpty()
        program = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); print('ready', flush=True); input()"
        shell = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program),
            cwd=box.root,
            stdin=terminal,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert await shell.stdout.readline() == b"ready\n"
    assert alive(shell.pid)
    shell.kill()
    await shell.wait()
    os.close(person)
    os.close(terminal)


async def test_close_releases_the_pipes_that_an_unknown_process_holds():
    async with LocalSandbox(trusted=True) as box:
        await box.exec("(cd / && exec env -i setsid sleep 30) & echo $! > pid; sleep 0.2", check=True)
        pid = await pid_in(box, "pid")
    assert not box.processes
    os.kill(pid, 9)


async def test_the_folder_is_gone_after_close(box):
    await box.write_file("/deep/down/file", "x")
    root = box.root
    await box.close()
    assert not root.exists()
    await box.close()


async def test_the_folder_is_gone_after_an_error():
    sandbox = LocalSandbox(trusted=True)
    with pytest.raises(ZeroDivisionError):
        async with sandbox:
            raise ZeroDivisionError
    assert not sandbox.root.exists()


async def test_a_cancelled_owner_leaves_nothing():
    sandbox = LocalSandbox(trusted=True)

    async def own():
        async with sandbox:
            await sandbox.exec("echo $$ > pid; sleep 30")

    task = asyncio.create_task(own())
    await asyncio.sleep(0)  # it enters without waiting for anything
    pid = await pid_in(sandbox, "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(pid)
    assert not sandbox.root.exists()


async def test_a_cancelled_close_still_cleans_up():
    sandbox = LocalSandbox(trusted=True)
    await sandbox.__aenter__()
    await sandbox.exec("sleep 30 & echo $! > pid", check=True)
    pid = await pid_in(sandbox, "pid")
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    for _ in range(200):
        if not sandbox.root.exists():
            break
        await asyncio.sleep(0.02)
    assert not sandbox.root.exists()
    assert await gone(pid)
    await sandbox.close()  # what is left to wait for
    assert not sandbox.processes


async def test_close_under_a_running_command_is_an_infrastructure_error():
    async with LocalSandbox(trusted=True) as box:
        task = asyncio.create_task(box.exec("echo $$ > pid; sleep 30"))
        await pid_in(box, "pid")
        begun = time.monotonic()
        await box.close()
        with pytest.raises(SandboxError, match="was closed while a command ran in it"):
            await task
    assert time.monotonic() - begun < 5


async def test_a_sandbox_is_used_once():
    sandbox = LocalSandbox(trusted=True)
    with pytest.raises(SandboxError, match="not open"):
        _ = sandbox.root
    await sandbox.close()  # never opened: nothing to do
    async with sandbox:
        with pytest.raises(SandboxError, match="make a new one"):
            await sandbox.__aenter__()
    with pytest.raises(SandboxError, match="make a new one"):
        await sandbox.__aenter__()


async def test_sandboxes_do_not_share_anything():
    async with LocalSandbox(trusted=True) as a, LocalSandbox(trusted=True) as b:
        assert a.sandbox_id != b.sandbox_id
        await a.write_file("/x", "a's")
        await b.exec("sleep 30 & echo $! > pid", check=True)
        await a.close()
        assert alive(await pid_in(b, "pid"))
        with pytest.raises(FileNotFoundError):
            await b.read_file("/x")


@pytest.fixture
def ordinary_user():
    """For root no folder is read-only; so root becomes somebody else for the length of a test."""
    if os.getuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_read_only_folders_are_removed_and_nothing_outside_is_touched(ordinary_user):
    with tempfile.TemporaryDirectory() as name:
        outside, root = Path(name, "outside"), Path(name, "root")
        outside.mkdir(mode=0o500)
        (root / "a" / "b").mkdir(parents=True)
        (root / "a" / "b" / "file").write_text("x")
        (root / "a" / "link").symlink_to(outside)
        for folder in ("a/b", "a", "."):
            (root / folder).chmod(0)
        local._remove(root)
        assert not root.exists()
        assert outside.stat().st_mode & 0o777 == 0o500
