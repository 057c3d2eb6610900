"""A relay inside a sandbox: programs that use TCP reach a Unix socket of the host, although there is no network.

The sandbox needs the socket (`SandboxSpec.sockets`) and python3. Example for a model's gateway:

    spec = SandboxSpec(sockets={"/run/gateway.sock": "/path/on/the/host/gateway.sock"})
    async with pool.acquire(spec) as box:
        await relay(box, 8000, "/run/gateway.sock")
        await box.exec("curl http://127.0.0.1:8000/")
"""

from __future__ import annotations

import asyncio

from agentrl.errors import SandboxError
from agentrl.sandbox import Process, Sandbox
from agentrl_sandbox.output import Stream

_READY_S = 20.0

PROGRAM = """
import asyncio, sys

PORT, SOCKET, NOTICE = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()

async def back(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:  # the program inside has gone; what else comes is for nobody
        while await reader.read(65536):
            pass

async def serve(reader, writer):
    try:
        there, forth = await asyncio.open_unix_connection(SOCKET)
    except OSError as exc:
        print(exc, file=sys.stderr, flush=True)
        return writer.close()
    answering = asyncio.create_task(back(there, writer))
    try:
        while data := await reader.read(65536):
            forth.write(data)
            await forth.drain()
        forth.write_eof()
        await answering
    except OSError:  # reset
        forth.write(NOTICE)
        if NOTICE:
            await asyncio.wait([answering], timeout=1)
    answering.cancel()
    forth.close()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", PORT)
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""Python code of the relay. Arguments: a port, the path of a socket, and `notice` of `relay`."""


async def relay(box: Sandbox, port: int, socket_path: str, *, notice: str = "") -> Process:
    """Connect `127.0.0.1:port` of a sandbox to a Unix socket inside, until the returned process is killed.

    A program that resets its connection has not read the whole response. A Unix socket has no reset, so the server
    outside gets the text `notice` before the connection ends.

    Raises SandboxError if the relay does not start: python3 is missing, or the port is taken.
    """
    ready = asyncio.Event()

    def hear(stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            ready.set()

    env = {"RELAY": PROGRAM, "AT": str(port), "TO": socket_path, "NOTICE": notice}
    process = await box.start('exec python3 -I -c "$RELAY" "$AT" "$TO" "$NOTICE"', env=env, on_output=hear)
    waiting, ending = asyncio.create_task(ready.wait()), asyncio.create_task(process.wait())
    try:
        await asyncio.wait([waiting, ending], timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            return process
        problem = ending.result().stderr.strip().splitlines()[-1:] if ending.done() else ["it did not answer"]
        raise SandboxError(f"sandbox {box.sandbox_id}: no relay to {socket_path}: {''.join(problem)}")
    finally:
        waiting.cancel()
        ending.cancel()
        if not ready.is_set():
            await process.kill()
