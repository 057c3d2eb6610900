"""Attacks on the proxy of a sandbox with a list of hosts: it passes nothing, and this process stays quick."""

import asyncio
import time

import pytest

from tests.sandbox.attacks.arena import ISOLATED, own_memory

pytestmark = [
    pytest.mark.parametrize("backend", ISOLATED, indirect=True),
    pytest.mark.parametrize("spec", [{"network": ("pypi.org", "*.example.org")}], indirect=True),
]


async def test_a_flood_of_requests(field, note):
    slowest, ending = 0.0, False

    async def watch():
        nonlocal slowest
        while not ending:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - before)

    memory, watching = own_memory(), asyncio.create_task(watch())
    result = await field.attack("proxy", "5", timeout=60)
    ending = True
    await watching
    count, *answers = result.stdout.splitlines()
    note(f"{count} requests in 5 s, slowest turn of the event loop {slowest:.2f} s, refused {dict(field.box.refused)}")
    assert result.exit_code == 0
    assert {answer.split()[1] for answer in answers if answer} <= {"400", "403", "431"}
    assert slowest < 2.0
    assert own_memory() - memory < 64 << 20
    asked = ("169.254.169.254:80", "[::ffff:", "0x7f000001:443", "localhost:22", "(a malformed request)")
    assert all(address.startswith(asked) for address in field.box.refused)
    assert await field.usable() == "usable"
