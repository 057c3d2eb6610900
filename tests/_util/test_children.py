"""Child processes that answer requests: their end is noticed, they can be killed, and large messages pass both ways."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys

import pytest

from agentrl._util import child, children
from agentrl._util.children import ChildProcess, Requests, how_ended

PROGRAM = f"""
import importlib.util, os, pickle, sys, time
from multiprocessing.connection import Connection
spec = importlib.util.spec_from_file_location("child", {child.__file__!r})
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
parent, pipe = map(int, sys.argv[1:])
connection = Connection(pipe)
outbox = child.Outbox(connection)

def holder():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    return pid

def answer():
    for message in child.of_parent(connection, parent):
        number, name, arguments = pickle.loads(message)
        result = {{"echo": lambda text: text, "hold": holder, "sleep": lambda: time.sleep(60)}}[name](*arguments)
        outbox.put(pickle.dumps((number, result)))
    outbox.close()

child.run(answer)
"""


def started():
    process = ChildProcess(["-c", PROGRAM], variables={})
    return Requests(process, lambda answer: answer, lambda status: ConnectionError(how_ended(status)))


async def test_large_messages_pass_both_ways_at_once():
    requests = started()
    texts = [bytes([number]) * (8 << 20) for number in range(6)]
    assert await asyncio.gather(*(requests.answer("echo", text) for text in texts)) == texts
    await requests.end()
    assert str(requests.ended.result()) == "with status 0"
    with pytest.raises(ConnectionError):
        await requests.answer("echo", b"")


async def test_a_killed_child_is_noticed_though_another_process_holds_its_pipe():
    requests = started()
    holder = await requests.answer("hold")
    waiting = asyncio.ensure_future(requests.answer("sleep"))
    await asyncio.sleep(0)
    os.kill(requests.child.pid, signal.SIGKILL)
    try:
        with pytest.raises(ConnectionError, match="by signal SIGKILL"):
            await asyncio.wait_for(waiting, 30)
        os.kill(holder, 0)
    finally:
        os.kill(holder, signal.SIGKILL)


async def test_a_child_that_does_not_end_by_itself_is_killed(monkeypatch):
    monkeypatch.setattr(children, "_END_S", 0.2)
    requests = started()
    waiting = asyncio.ensure_future(requests.answer("sleep"))
    await asyncio.sleep(0)
    await requests.end()
    with pytest.raises(ConnectionError, match="by signal SIGKILL"):
        await waiting


async def test_a_cancelled_caller_leaves_the_others_alone():
    requests = started()
    first = asyncio.ensure_future(requests.answer("echo", 1))
    await asyncio.sleep(0)
    first.cancel()
    assert await requests.answer("echo", 2) == 2
    await requests.end()


OWNER = """
import os, sys, time
from tests._util.test_children import started
requests = started()
requests.ask("echo", 1)[1].result()
forked = os.fork()
if forked == 0:
    os.setsid()
    time.sleep(60)
print(requests.child.pid, forked, flush=True)
time.sleep(60)
"""


@pytest.mark.thorough
def test_a_child_ends_with_its_killed_parent_though_another_process_holds_the_pipe():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pid, forked = map(int, owner.stdout.readline().split())
    ending = os.pidfd_open(pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    try:
        assert select.select([ending], [], [], 30)[0], "the child outlives its parent"
    finally:
        os.close(ending)
        os.kill(forked, signal.SIGKILL)
