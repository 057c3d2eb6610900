"""A box without a network reaches the host by a Unix socket, and by TCP through the relay."""

import asyncio
import os
import tempfile

import pytest

from agentrl.errors import SandboxError
from agentrl_sandbox.relay import relay
from agentrl_sandbox.spec import SandboxSpec
from tests.sandbox.backends.inside import ISOLATED

pytestmark = pytest.mark.parametrize("backend", ISOLATED, indirect=True)

DIAL = """
import socket
s = socket.create_connection(("127.0.0.1", 8123), 5)
s.sendall(b"x" * 300000 + b"\\n"); s.shutdown(socket.SHUT_WR)
print(len(b"".join(iter(lambda: s.recv(65536), b""))))
"""


@pytest.fixture
async def host_socket():
    async def answer(reader, writer):
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others, and too long for a socket
        os.chmod(folder, 0o755)
        server = await asyncio.start_unix_server(answer, f"{folder}/s")
        os.chmod(f"{folder}/s", 0o666)
        yield f"{folder}/s"
        server.close()


@pytest.mark.thorough
async def test_tcp_inside_reaches_the_socket_outside(backend, host_socket):
    async with backend.sandbox(SandboxSpec(sockets={"/run/gateway.sock": host_socket})) as box:
        process = await relay(box, 8123, "/run/gateway.sock")
        for _ in range(2):
            assert (await box.exec("python3 -", stdin=DIAL.encode(), check=True, timeout=30)).stdout == "300001\n"
        with pytest.raises(SandboxError, match=r"no relay to /run/gateway.sock: .*[Aa]ddress already in use"):
            await relay(box, 8123, "/run/gateway.sock")
        await process.kill()
        assert "refused" in (await box.exec("python3 -", stdin=DIAL.encode())).stderr
