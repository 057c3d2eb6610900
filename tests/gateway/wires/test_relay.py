"""Through a sandbox's relay an answer that nobody read is given again, as it is without one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from agentrl.gateway.endpoint import RESET_NOTICE
from agentrl_sandbox.relay import PROGRAM
from tests.gateway.wires.sessions import play, segments
from tests.gateway.wires.sockets import connected, read_until

__all__ = ["play"]


@asynccontextmanager
async def relayed(gateway, unused_tcp_port):
    """The gateway as a sandbox sees it."""
    argv = ["-I", "-c", PROGRAM, str(unused_tcp_port), str(gateway.socket_path), RESET_NOTICE]
    running = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert await running.stdout.readline() == b"ready\n"
        yield SimpleNamespace(url=f"http://127.0.0.1:{unused_tcp_port}")
    finally:
        running.kill()
        await running.wait()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_an_answer_that_nobody_read_is_given_again(play, unused_tcp_port, stream, seconds):
    gateway, session = play(["One.", "Two."], seconds)
    async with relayed(gateway, unused_tcp_port) as there:
        async with connected(there, stream=stream) as plain:
            if not seconds:  # else the client goes while the engine runs
                await session.delivered.wait()
                await asyncio.get_running_loop().sock_recv(plain, 1)  # the answer has come, and is not read
        async with asyncio.timeout(10):
            await session.lost.wait()
        for expected in (b"One.", b"Two."):  # an answer that was read is not given again
            async with connected(there, stream=stream) as plain:
                assert expected in await read_until(plain, b"[DONE]" if stream else b"}}}")
    assert len(session.engine.requests) == 2
    assert len(segments(session)) == 2


async def test_the_end_of_a_connection_is_no_reset(play, unused_tcp_port):
    gateway, session = play(["One.", "Two."])
    async with relayed(gateway, unused_tcp_port) as there:
        for expected in (b"One.", b"Two."):
            async with connected(there) as plain:
                assert expected in await read_until(plain, b"}}}")
            await asyncio.sleep(0.05)
    assert not session.lost.is_set()
