"""The harnesses of libraries, each in its library's own Python environment: an episode with a pause in its middle."""

from __future__ import annotations

import asyncio
import json
import os
import sysconfig
from pathlib import Path

import pytest

from tests.gateway.clients.installed import path_of
from tests.gateway.clients.test_coding import PAUSE_S

_ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", ["openai-agents", "strands-agents"])
async def test_survives_a_pause(client):
    """The library's own packages go before those of this project's environment."""
    (own,) = Path(path_of(client)).parents[1].glob("lib/python*/site-packages")
    paths = [own, _ROOT, _ROOT / "envs", _ROOT / "sandbox", sysconfig.get_path("purelib")]
    name = {"openai-agents": "openai_agents", "strands-agents": "strands"}[client]
    process = await asyncio.create_subprocess_exec(
        path_of(client),
        str(Path(__file__).parent / "programs" / "harness.py"),
        name,
        str(PAUSE_S),
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    told = json.loads(said.decode().splitlines()[-1])
    expected = {"reward": 1.0, "stop": "done", "failure": "None", "segments": 1, "turns": 4, "untrained": 0}
    assert told == expected, errors.decode()[-3000:]
