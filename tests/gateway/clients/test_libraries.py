"""The harnesses of libraries, each in its library's own Python environment: an episode with a pause in its middle."""

from __future__ import annotations

import asyncio
import json
import os
import sysconfig
from pathlib import Path

import pytest

from tests.gateway.clients.installed import path_of
from tests.gateway.clients.pauses import PAUSE_S

_ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", ["openai-agents", "langgraph", "strands-agents"])
async def test_survives_a_pause(client):
    name = {"openai-agents": "openai_agents", "langgraph": "langgraph", "strands-agents": "strands"}[client]
    said, errors = await ran(client, Path(__file__).parent / "programs" / "harness.py", name, str(PAUSE_S))
    told = json.loads(said.splitlines()[-1])
    expected = {"reward": 1.0, "stop": "done", "failure": "None", "segments": 1, "turns": 4, "untrained": 0}
    assert told == expected, errors[-3000:]


@pytest.mark.timeout(300)
async def test_the_example_of_langgraph_passes_its_tests():
    options = ("-q", "-n0", "-p", "no:cacheprovider")
    said, _ = await ran("langgraph", "-m", "pytest", _ROOT / "tests" / "examples" / "test_langgraph.py", *options)
    assert "passed" in said
    assert "skipped" not in said


async def ran(client: str, *arguments: object) -> tuple[str, str]:
    """What Python printed and wrote to stderr, where the library's own packages go before those of this project."""
    (own,) = Path(path_of(client)).parents[1].glob("lib/python*/site-packages")
    paths = [own, _ROOT, _ROOT / "envs", _ROOT / "sandbox", sysconfig.get_path("purelib")]
    process = await asyncio.create_subprocess_exec(
        path_of(client),
        *map(str, arguments),
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert process.returncode == 0, said.decode()[-3000:] + errors.decode()[-3000:]
    return said.decode(), errors.decode()
