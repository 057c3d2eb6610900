"""Plays an episode with the core of agentrl alone: `played_alone.py PART`, or `played_alone.py served OPTIONS`."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp

import agentrl
from agentrl.engine import ScriptedEngine
from agentrl.engine.sglang.server import running_server
from agentrl.testing import call, rollout, tiny_renderer

HERE = Path(__file__).parent
assert Path(agentrl.__file__).is_relative_to(HERE), agentrl.__file__
assert find_spec("agentrl.train") is None

CAPITALS = {"France": "Paris"}
SCRIPT = [call("capital", country="France"), "Paris"]
TASK = agentrl.Task(prompt="The capital of France?", label="Paris")
RENDERER = tiny_renderer()


class Lookup(agentrl.Env):
    """Answers from a table."""

    @agentrl.tool
    async def capital(self, country: str) -> str:
        """The capital of a country."""
        return CAPITALS[country]

    def score(self, trajectory: agentrl.Trajectory) -> float:
        return float(trajectory.answer == self.task.label)


class Asker(agentrl.AgentEnv):
    """An agent that asks once, by HTTP."""

    async def run(self, task: agentrl.Task, endpoint: agentrl.Endpoint) -> Any:
        return await asked(endpoint.openai, task.prompt, {"Authorization": f"Bearer {endpoint.key}"})

    def score(self, trajectory: agentrl.Trajectory) -> float:
        return float(self.result == self.task.label)


class Status(Enum):
    """The states of a slime Sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The fields of slime's Sample that agentrl reads and writes."""

    prompt: Any
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: Any = None
    response: str = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    session_id: str | None = None
    custom_rm_path: str | None = None
    status: Status = Status.PENDING
    Status: ClassVar = Status


async def asked(url: str, prompt: Any, headers: dict[str, str]) -> str:
    """The answer of a Chat Completions server."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}]}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{url}/chat/completions", json=body, raise_for_status=True) as answer,
    ):
        message = (await answer.json())["choices"][0]["message"]
    return str(message["content"])


def say(input_ids: Sequence[int]) -> Any:
    """One turn of the scripted model: a call of the tool, and after its result the answer."""
    return SCRIPT["Paris" in RENDERER.decode(input_ids)]


def answer(input_ids: Sequence[int]) -> str:
    """The turn of a scripted model without tools."""
    return "Paris"


async def env() -> Any:
    """An episode of an Env."""
    return (await rollout(Lookup(), TASK, SCRIPT)).reward


async def gateway() -> Any:
    """An agent's session at the gateway."""
    return (await rollout(Asker(), TASK, ["Paris"])).reward


async def slime() -> Any:
    """A sample of slime."""
    sample = Sample(TASK.prompt, TASK.label)
    async with running_server(ScriptedEngine(say, RENDERER), decode=RENDERER.decode) as url:
        host, port = url.removeprefix("http://").split(":")
        args = SimpleNamespace(
            hf_checkpoint="tiny",
            sglang_router_ip=host,
            sglang_router_port=int(port),
            rollout_max_context_len=None,
            apply_chat_template=False,
            rollout_top_p=1.0,
            rm_type=None,
            custom_rm_path=None,
            agentrl={"env": "played_alone.py:Lookup"},
        )
        played = await agentrl.adapt(args, sample, {})
    assert sum(played.loss_mask) == sum(log_prob != 0 for log_prob in played.rollout_log_probs) > 0
    return played.reward


async def served(*words: str) -> Any:
    """The answer of `agentrl serve --openai` in another process."""
    command = (sys.executable, "-m", "agentrl", "serve", *words, "--openai", "--port", "0")
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        first = (await server.stdout.readline()).decode() if server.stdout else ""
        url = re.search(r"http://\S+?(?=,)", first)
        assert url, first
        return await asked(f"{url[0]}/v1", TASK.prompt, {})
    finally:
        server.terminate()
        await server.wait()


if __name__ == "__main__":
    part, *words = sys.argv[1:]
    print(f"{part}: {asyncio.run(globals()[part](*words))}")
