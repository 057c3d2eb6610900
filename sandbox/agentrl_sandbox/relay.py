"""A relay inside a sandbox: programs that speak TCP reach a Unix socket of the host, though there is no network.

The sandbox needs the socket (`SandboxSpec.sockets`) and python3. A model's gateway is then reached so:

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

_PROGRAM = """
import asyncio, sys

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()

async def serve(reader, writer):
    try:
        there = await asyncio.open_unix_connection(sys.argv[2])
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        there[1].close()
    except OSError as exc:
        print(exc, file=sys.stderr, flush=True)
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


async def relay(box: Sandbox, port: int, socket_path: str) -> Process:
    """Have `127.0.0.1:port` of a sandbox lead to a Unix socket in it, until the process returned is killed.

    Raises SandboxError if the relay does not start: python3 is missing, or the port is taken.
    """
    ready = asyncio.Event()

    def hear(stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            ready.set()

    env = {"RELAY": _PROGRAM, "AT": str(port), "TO": socket_path}
    process = await box.start('exec python3 -I -c "$RELAY" "$AT" "$TO"', env=env, on_output=hear)
    waiting, ending = asyncio.create_task(ready.wait()), asyncio.create_task(process.wait())
    try:
        await asyncio.wait([waiting, ending], timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            return process
        said = ending.result().stderr.strip().splitlines()[-1:] if ending.done() else ["it did not answer"]
        raise SandboxError(f"sandbox {box.sandbox_id}: no relay to {socket_path}: {''.join(said)}")
    finally:
        waiting.cancel()
        ending.cancel()
        if not ready.is_set():
            await process.kill()
