"""The watch sees all that a program may leave behind. Otherwise the tests that nothing is left could not fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearse.leftovers import MARKER, Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the watch reads /proc")
PROGRAM = """
import os, socket, subprocess, sys, time
from multiprocessing import shared_memory, resource_tracker
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True, stdout=subprocess.PIPE)
    print(child.stdout.readline().decode(), flush=True)
    sys.stdin.readline()
else:
    memory = shared_memory.SharedMemory(create=True, size=10)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], memory.name, flush=True)
    time.sleep(60)
"""


def test_a_grandchild_in_its_own_session_its_port_and_its_memory_are_seen(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {MARKER: str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        with Watch(program.pid, str(tmp_path)) as watch:
            port, name = program.stdout.readline().split()
            watch.look()
            program.communicate("\n")
        (child,) = watch.named("program.py child")
        left = watch.left()
        os.kill(child, 9)
    assert any(line.startswith(f"process {child}:") for line in left)
    assert f"port {port} listens" in left
    assert f"/dev/shm/{name} exists" in left
    Path(f"/dev/shm/{name}").unlink(missing_ok=True)


def test_a_program_that_leaves_nothing():
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    with Watch(program.pid, "nobody") as watch:
        watch.look()
        assert watch.left()
        program.communicate("\n")
        assert watch.left() == []
