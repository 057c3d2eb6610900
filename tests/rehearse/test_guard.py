"""Nothing is left of a rehearsal's processes, however the command ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.rehearse.cluster import Guarded, free_ports, node_address

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux adopts orphans")

# Starts a grandchild in a session of its own, which outlives its parent and ignores SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
code += "open('{folder}/' + str(os.getpid()), 'w'); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
open('{folder}/' + str(os.getpid()), 'w')
time.sleep({seconds})
"""
COMMAND = """
import sys
from pathlib import Path
from agentrl.rehearse.cluster import Guarded
folder = Path(sys.argv[1])
with Guarded() as processes:
    processes.clean(remove=[folder / "temporary"], remove_if_empty=[folder / "empty", folder / "full"])
    processes.start("family", [sys.executable, "-c", sys.argv[2]], {}, folder, folder / "log")
    processes.wait(600)
"""


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def pids(folder):
    found = [int(file.name) for file in folder.iterdir() if file.name.isdigit()]
    return found if len(found) == 2 else None


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def family(folder, seconds=600):
    return FAMILY.format(folder=folder, seconds=seconds)


@pytest.fixture
def command(tmp_path):
    """A process that has started a family below a guard, and the family's processes."""
    for name in ("temporary", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").touch()
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path), family(tmp_path)])
    yield process, wait_until(lambda: pids(tmp_path))
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_everything_ends_with_the_command(command, tmp_path, number):
    process, members = command
    assert all(map(lives, members))
    process.send_signal(number)
    process.wait()
    wait_until(lambda: not any(map(lives, members)), seconds=10)
    wait_until(lambda: not (tmp_path / "temporary").exists())
    wait_until(lambda: not (tmp_path / "empty").exists())
    assert (tmp_path / "full/file").exists(), "a folder with files of somebody else stays"


def named_processes(parent):
    """The guard's two processes, the first one first, with their names."""
    outer = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
    inner = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
    return {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in (outer, inner)}


@pytest.mark.parametrize(("index", "with_command"), [(0, True), (1, True), (1, False)])
def test_a_killed_guard_leaves_nothing(command, tmp_path, index, with_command):
    """In slime's scripts `pkill -9 python` comes first, and a machine without memory kills anything."""
    process, members = command
    guards = named_processes(process.pid)
    assert not any("python" in name or "ray" in name for name in guards.values())
    if with_command:
        process.kill()
    os.kill([*guards][index], signal.SIGKILL)
    process.wait(20)
    wait_until(lambda: not any(map(lives, [*members, *guards])), seconds=10)
    wait_until(lambda: not (tmp_path / "temporary").exists())
    wait_until(lambda: not (tmp_path / "empty").exists())


def test_orphans_of_an_ended_process_are_swept(tmp_path):
    with Guarded() as processes:
        processes.start("family", [sys.executable, "-c", family(tmp_path, seconds=0)], {}, tmp_path, tmp_path / "log")
        members = wait_until(lambda: pids(tmp_path))
        processes.start("other", [sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path, tmp_path / "log")
        while processes.status("family") is None:
            processes.wait(1)
        assert any(map(lives, members))
        processes.sweep()
        wait_until(lambda: not any(map(lives, members)))
        assert processes.status("other") is None


def test_a_killed_process_takes_its_descendants_with_it(tmp_path):
    with Guarded() as processes:
        processes.start("family", [sys.executable, "-c", family(tmp_path)], {}, tmp_path, tmp_path / "log")
        members = wait_until(lambda: pids(tmp_path))
        processes.kill("family")
        while processes.status("family") is None:
            processes.wait(1)
        assert processes.status("family") == -signal.SIGKILL
        wait_until(lambda: not any(map(lives, members)))


def test_a_program_that_does_not_exist_ends_at_once(tmp_path):
    with Guarded() as processes:
        processes.start("missing", [str(tmp_path / "missing")], {}, tmp_path, tmp_path / "log")
        while processes.status("missing") is None:
            processes.wait(1)
    assert processes.status("missing") == 127
    assert "No such file" in (tmp_path / "log").read_text()


def test_shared_memory_is_removed_and_that_of_others_stays(tmp_path):
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("no /dev/shm here")
    others, own = shared / f"agentrl-other-{os.getpid()}", shared / f"agentrl-own-{os.getpid()}"
    others.write_bytes(b"x")
    code = (
        f"import mmap, os, time; file = open({str(own)!r}, 'w+b'); file.truncate(4096); "
        f"kept = mmap.mmap(file.fileno(), 4096); open({str(tmp_path / 'ready')!r}, 'w'); time.sleep(600)"
    )
    try:
        with Guarded() as processes:
            processes.start("holder", [sys.executable, "-c", code], {}, tmp_path, tmp_path / "log")
            wait_until((tmp_path / "ready").exists)
        assert not own.exists()
        assert others.exists()
    finally:
        others.unlink(missing_ok=True)
        own.unlink(missing_ok=True)


def test_logs_are_kept(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/worker.err").write_text("error")
    with Guarded() as processes:
        processes.clean(remove=[tmp_path / "logs"], keep=[(tmp_path / "logs", tmp_path / "kept")])
    assert (tmp_path / "kept/worker.err").read_text() == "error"
    assert not (tmp_path / "logs").exists()


def test_ports_differ_and_nodes_have_their_own_address():
    assert len({*free_ports(8)}) == 8
    assert node_address(0) != node_address(1)
    assert "127.0.0.1" not in (node_address(0), node_address(1)), "Ray replaces that address by the machine's"


@pytest.mark.thorough
def test_another_rehearsal_has_other_addresses():
    code = "from agentrl.rehearse.cluster import node_address; print(node_address(0))"
    others = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert len({f"{node_address(0)}\n", *others}) > 1
