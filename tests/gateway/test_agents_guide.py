"""docs/agents.md: its code, exactly as it stands there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from agentrl import EnvFactory, Limits, SessionOptions, StopReason, Task
from agentrl.rewards import em
from agentrl.testing import rollout
from agentrl_sandbox.owners import current
from tests.sandbox.engine import entered

GUIDE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
MY_AGENT = """
import json

LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}


async def answer(question, client):
    messages = [{"role": "user", "content": question}]
    while True:
        made = await client.chat.completions.create(model="any", messages=messages, tools=[LOOKUP])
        said = made.choices[0].message
        messages.append(said)
        if not said.tool_calls:
            return said.content
        for call in said.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{city} is foggy"})
"""
PROGRAM = """
import json, os, sys, urllib.request

asked = {"model": "any", "messages": [{"role": "user", "content": open("task.txt").read()}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(asked).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer.txt", "w").write(said)
"""


def block(beginning: str) -> str:
    return next(block for block in BLOCKS if block.startswith(beginning))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "my_agent.py").write_text(MY_AGENT)
    (tmp_path / "my_env.py").write_text(block("# my_env.py"))
    yield tmp_path
    for name in ("my_agent", "my_env"):
        sys.modules.pop(name, None)


def test_each_block_is_tested_here():
    assert [b.splitlines()[0] for b in BLOCKS] == [
        "# agent.py",
        "# my_env.py",
        "class OneLine(MyAgent):",
        "# team.py",
        "# coder.py",
        "import asyncio",
        "# play_team.py",
    ]


async def test_a_script_without_a_line_of_code(tmp_path):
    """The page's script, its command and its reward, with a script in the model's place."""
    (tmp_path / "agent.py").write_text(block("# agent.py"))
    command = re.search(r'env_config.command="\$\(which python\) (.*?)"', GUIDE)[1].replace("$PWD", str(tmp_path))
    config = {"backend": "local", "size": 1, "command": f"{sys.executable} {command}"}
    task = Task(prompt="Capital of France?", label="Paris")

    def player(messages, tools):
        if messages[0]["content"] == "Write down what the question needs.":
            assert messages[1]["content"] == task.prompt
            return "The capital of France."
        return "Paris"

    async with EnvFactory("agentrl_envs.agents:ContainerAgent", config) as envs:
        played = await rollout(envs.make(), task, player, reward=em)
    assert (played.reward, played.answer, played.failure) == (1.0, "Paris", None)
    assert (played.info["result"]["exit_code"], played.info["result"]["stdout"]) == (0, "Paris\n")
    assert sum(segment.ledger.trained for segment in played.segments) > 0


async def test_a_player_of_the_team(folder):
    (folder / "team.py").write_text(block("# team.py"))
    namespace: dict[str, object] = {}
    exec(block("# play_team.py"), namespace)
    async with EnvFactory(f"{folder}/team.py:Team") as envs:
        played = await rollout(envs.make(), Task(prompt="6 times 7?", label="42"), namespace["player"])
    assert (played.reward, played.answer, played.branch_rewards) == (1.0, "42", dict.fromkeys(played.branches, 1.0))


def test_the_guides_test_of_the_guides_agent(folder):
    namespace: dict[str, object] = {}
    exec(block("import asyncio"), namespace)
    namespace["test_asks_and_answers"]()


async def test_an_option_of_the_session(folder):
    async with EnvFactory(f"{folder}/my_env.py:MyAgent") as envs:
        namespace = {"MyAgent": envs.cls, "SessionOptions": SessionOptions}
        exec(block("class OneLine"), namespace)
        played = await rollout(namespace["OneLine"](), Task(prompt="Weather in Rome?", label="foggy"), ["foggy"])
    assert played.reward == 1.0


async def test_a_team_with_a_reward_for_each_solver(folder):
    (folder / "team.py").write_text(block("# team.py"))
    solved = ["It is 42.", "It is 41.", "42!"]
    async with EnvFactory(f"{folder}/team.py:Team") as envs:
        replies = iter([*solved, "42, twice."])
        played = await rollout(envs.make(), Task(prompt="6 times 7?", label="42"), lambda ids: next(replies))
        cut = Limits(turns=2)
        ended = await rollout(envs.make(), Task(prompt="6 times 7?", label="42"), lambda ids: "42", limits=cut)
    assert played.earned.keys() == {"solver/1", "solver/2", "solver/3", ""}
    assert (sorted(played.branch_rewards.values()), played.reward) == ([0.0, 1.0, 1.0], 1.0)  # asked at once
    assert (ended.stop, ended.earned) == (StopReason.MAX_TURNS, {"": 0.0})


@pytest.fixture(params=["local", "bubblewrap", "docker"])
async def backend(request):
    async with entered(request.param) as backend:
        yield request.param
        assert [found for found in await backend.list() if found.owner == current()] == []


@pytest.mark.thorough
async def test_a_program_in_a_sandbox(folder, backend):
    (folder / "coder.py").write_text(block("# coder.py"))
    config = {"backend": backend, "command": f"python3 -c '{PROGRAM}'"}
    task = Task(prompt="What is 6 times 7?", label="42")
    async with EnvFactory(f"{folder}/coder.py:Coder", config) as envs:
        won, lost = await asyncio.gather(*(rollout(envs.make(), task, [said]) for said in ("42", "41")))
        assert (won.reward, won.stop, lost.reward) == (1.0, StopReason.DONE, 0.0), (won.failure, won.info)
        assert won.info["result"] == 0
        hung = {**config, "command": f"{config['command']}; sleep 1000 & touch begun; wait"}
    killed = {**config, "command": f"{config['command']}; kill -9 $$"}
    async with EnvFactory(f"{folder}/coder.py:Coder", killed) as envs:
        ended = await rollout(envs.make(), task, ["42"])
        assert (ended.reward, ended.failure, ended.info["result"]) == (1.0, None, 137)
    async with EnvFactory(f"{folder}/coder.py:Coder", hung) as envs:
        env = envs.make()
        episode = asyncio.create_task(rollout(env, task, ["42"]))
        async with asyncio.timeout(30):
            while not (hasattr(env, "box") and (await env.box.exec("test -e begun")).exit_code == 0):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode


@pytest.mark.thorough
async def test_a_sandbox_without_the_socket_is_told_what_it_lacks(folder, backend):
    if backend == "local":
        pytest.skip("its commands run on this machine, where the gateway is")
    code = block("# coder.py").replace(", sockets=endpoint.sockets", "")
    (folder / "coder.py").write_text(code)
    async with EnvFactory(f"{folder}/coder.py:Coder", {"backend": backend}) as envs:
        with pytest.raises(Exception, match=r"cannot reach the gateway: .*sockets=endpoint.sockets"):
            await rollout(envs.make(), Task(prompt="x", label="y"), ["42"])
