"""Tunnels to an engine on another machine. The program in the middle is a shell script here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl_sandbox.docker.tunnel import DialTunnel

_PROGRAM = r"""
if mkdir "$1/pinged" 2> /dev/null; then printf 'HTTP/1.1 200 OK\r\n\r\n'; exit; fi
echo $$ >> "$1/programs"
[ "$2" = silent ] || printf 'begin\n'
exec sleep 600
"""
"""The first start responds to the ping. Each later start hangs, before its first byte if the mode is `silent`."""


def tunnel(folder: Path, mode: str, at_a_time: int = 1) -> DialTunnel:
    return DialTunnel("a test", ["sh", "-c", _PROGRAM, "sh", str(folder), mode], at_a_time)


def programs(folder: Path) -> list[int]:
    path = folder / "programs"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition never became true")


def running(folder: Path) -> list[int]:
    return [pid for pid in programs(folder) if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("mode", ["silent", "speaking"])
async def test_close_ends_each_connection_and_each_program(tmp_path, mode):
    """The first connection has a program. With `silent`, the other two wait for a turn."""
    link = tunnel(tmp_path, mode)
    await link.open()
    clients = [await asyncio.open_unix_connection(link.socket) for _ in range(3)]
    await until(lambda: len(programs(tmp_path)) == (1 if mode == "silent" else 3))
    await link.close()
    for reader, writer in clients:
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read()
        writer.close()
    assert not running(tmp_path)
    gc.collect()  # a connection that stayed open would warn here


async def test_a_connection_that_arrives_during_close_is_ended(tmp_path):
    link = tunnel(tmp_path, "silent")
    await link.open()
    opening = [asyncio.create_task(asyncio.open_unix_connection(link.socket)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await link.close()
    for result in await asyncio.gather(*opening, return_exceptions=True):
        if isinstance(result, OSError):
            continue
        reader, writer = result
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read()
        writer.close()
    assert not running(tmp_path)
    gc.collect()


async def test_unsent_bytes_do_not_keep_a_closed_connection_open(tmp_path):
    """The client does not read, so the tunnel holds bytes that it cannot send."""
    flood = 'if mkdir "$1/pinged" 2> /dev/null; then printf "HTTP/1.1 200 OK\\r\\n\\r\\n"; exit; fi; exec cat /dev/zero'
    link = DialTunnel("a test", ["sh", "-c", flood, "sh", str(tmp_path)])
    await link.open()
    _, writer = await asyncio.open_unix_connection(link.socket, limit=1)
    await asyncio.sleep(0.5)
    await link.close()
    await asyncio.sleep(0)
    writer.close()
    gc.collect()
