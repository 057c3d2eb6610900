"""SIGKILL ends a host: nobody closes its Envs, and their sandboxes end all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from agentrl_sandbox import survey
from agentrl_sandbox.bubblewrap import registry
from tests.hosts.conftest import need
from tests.sandbox.engine import entered

PROGRAM = ("-m", "tests.hosts.playing.killed")


@pytest.mark.thorough
@pytest.mark.timeout(300)  # TRL alone takes a while to start
@pytest.mark.parametrize("host", ["turned", "trl"])
async def test_sandboxes_of_a_killed_host_end(host, tmp_path, monkeypatch):
    if host == "trl":
        need("trl")
    async with entered("bubblewrap"):
        monkeypatch.setattr(registry, "folder", lambda: tmp_path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *PROGRAM, host, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            while (line := await process.stdout.readline()) != b"ready\n":
                assert line, "the host ended early"
            boxes = registry.entries()
        finally:
            process.kill()
            await process.wait()
        assert len(boxes) == 4
        async with asyncio.timeout(30):
            while any(box.runs for box in boxes):  # noqa: ASYNC110 - the end of a process sets no event
                await asyncio.sleep(0.05)
        assert await survey.collect("bubblewrap") == len(boxes)
        assert registry.entries() == []
