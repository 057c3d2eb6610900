"""The scripts around a command and its end, on this machine's own shell: no engine is needed."""

import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl.errors import SandboxError
from agentrl_sandbox.docker import wrapper
from agentrl_sandbox.docker.state import ContainerState
from agentrl_sandbox.docker.wrapper import Marks, killer, new_token, wrapped
from agentrl_sandbox.spec import SandboxSpec

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
BUSYBOX = shutil.which("busybox")


def run(argv, **options):
    return subprocess.run(argv, capture_output=True, timeout=30, check=False, **options)


@pytest.fixture(params=[*SHELLS, *(["busybox"] if BUSYBOX else [])])
def shell(request):
    """The scripts name /bin/sh; images have different ones there."""
    argv = [BUSYBOX, "sh"] if request.param == "busybox" else [shutil.which(request.param)]
    return lambda command: [*argv, *command[1:]]


def test_streams_and_exit_code_arrive_between_marks(shell):
    token = new_token()
    done = run(shell(wrapped(["sh", "-c", "echo out; echo err >&2; exit 3"], token, "/")))
    out, err = Marks(token, 2), Marks(token, 1)
    assert (out.feed(done.stdout), err.feed(done.stderr)) == (b"out\n", b"err\n")
    assert wrapper.BEGUN.fullmatch(out.reports[0])
    assert (out.reports[1], err.reports) == ("3", ["3"])


def test_a_missing_folder_is_told(shell):
    token = new_token()
    out = Marks(token, 2)
    assert out.feed(run(shell(wrapped(["true"], token, "/no/such"))).stdout) == b""
    assert out.reports == [wrapper.NO_FOLDER]


def test_without_bash_a_command_runs_in_sh(shell, tmp_path):
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name))
    token = new_token()
    done = run(shell(wrapped(["bash", "-c", "echo $0"], token, "/")), env={"PATH": str(tmp_path)})
    assert Marks(token, 2).feed(done.stdout) == b"sh\n"


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=80) | st.sampled_from([b"\x1e", b"\x1eab", b"\x1e\x1e"]), max_size=6),
    st.lists(st.integers(1, 40), max_size=8),
)
def test_marks_come_out_however_the_stream_is_cut(pieces, cuts):
    token = "\x1eabcdef012345:"
    body = b"".join(pieces)
    if token.encode() in body:
        return
    stream = token.encode() + b"p12m0;" + body + token.encode() + b"7m;" + b"what others say later"
    marks, own = Marks(token, 2), b""
    for size in [*cuts, len(stream)]:
        own += marks.feed(stream[:size])
        stream = stream[size:]
    assert own == body
    assert marks.reports == ["p12m0", "7m"]


def test_what_is_held_back_is_given_when_no_mark_comes():
    marks = Marks("\x1eabc:", 1)
    assert marks.feed(b"text\x1eab") == b"text"
    assert marks.rest() == b"\x1eab"


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_a_tree_dies_whole_and_nothing_else_does(shell):
    """Five generations, one of them in a session of its own, and a process that is not of the tree."""
    nest = "import os,sys,time\nn=int(sys.argv[1])\nif n==2: os.setsid()\n" + (
        "os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, '-c', sys.argv[2], str(n-1), sys.argv[2]])"
        " if n else 0\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    root = subprocess.Popen([sys.executable, "-c", nest, "4", nest], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["sleep", "60"])
    try:
        pids = [int(root.stdout.readline()) for _ in range(5)]
        done = run(shell(killer(root.pid)))
        assert done.stdout.decode().strip() == wrapper.KILLED
        root.wait(10)
        deadline = time.monotonic() + 10
        while any(map(lives, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(lives, pids))
        assert other.poll() is None
    finally:
        other.kill()
        root.kill()
        other.wait()
        root.wait()
        root.stdout.close()


def lives(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return not re.search(r"State:\t[ZX]", file.read())
    except OSError:
        return False


def test_the_killer_starts_no_process(shell, tmp_path):
    """There may be no room for one: nothing is on its PATH, and it still ends."""
    victim = subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE)
    victim.stdout.readline()  # it has a child now, as a command has while it runs
    try:
        done = run(shell(killer(victim.pid)), env={"PATH": str(tmp_path)})
        assert done.stdout.decode().strip() == wrapper.KILLED
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.stdout.close()


@pytest.mark.parametrize(("usage", "full"), [(62, True), (10, False)])
async def test_a_sandbox_too_full_to_count_its_kills(usage, full):
    """The kernel kills the command that reads the count, too. The engine still reports the memory in use."""
    stats = {"memory_stats": {"usage": usage, "limit": 64}}
    engine = SimpleNamespace(docker=MagicMock(_query_json=AsyncMock(return_value=stats)))
    state = ContainerState(SandboxSpec(memory_mb=64), "a-name", engine)
    state.output_of = AsyncMock(side_effect=SandboxError("no room"))
    assert await state.out_of_memory(before=0) == full
