"""A caller without an event loop that is interrupted waits until the coroutine has cleaned up."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from agentrl.workers.threads import LoopThread


@pytest.fixture
def thread():
    thread = LoopThread("test")
    yield thread
    thread.stop()


def test_the_result_and_the_error_are_the_callers(thread):
    async def division(by):
        return 6 / by

    assert thread.run_here(division(2)) == 3
    with pytest.raises(ZeroDivisionError):
        thread.run_here(division(0))


def test_an_interrupted_caller_waits_for_the_end(thread):
    ended = []

    async def interrupted():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        thread.run_here(interrupted())
    assert ended == [True]
