"""The MCP adapter over real processes: what servers answer, and what becomes of episodes whose server misbehaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl import ConfigError, EnvFactory, Limits, StopReason, Task
from agentrl.testing import call, rollout

pytest.importorskip("mcp")
ENV = "agentrl_envs.adapters.mcp:MCP"
ODD = {"command": sys.executable, "args": [str(Path(__file__).with_name("odd_mcp_server.py")), "{folder}"]}
TASK = Task(prompt="Which colour?", label="red")


async def played(turns, config=ODD, task=TASK, renderer=None, **limits):
    async with EnvFactory(ENV, config) as envs:
        return await rollout(envs.make(), task, turns, renderer=renderer, limits=Limits(**limits))


async def test_what_a_server_answers_becomes_what_the_model_reads(renderer):
    asked = ["image", "mixed", "structured", "failed", "mute", "resource", "broken", "rubbish", "still"]
    said = [call("does", text=text) for text in asked]
    task = Task(prompt="Go", label="red", metadata={"files": {"a/b.txt": "from the task"}})
    t = await played([*said, call("does", text="read a/b.txt"), call("other"), "red"], task=task, renderer=renderer)
    read = [m["content"] for m in t.messages if m["role"] == "tool"]
    assert read[:6] == [
        "Error: the tool answered with image, which you cannot read; ask for text",
        "a cat\n[image: left out, the model reads text]",
        '{"kg": 3}',
        "Error: disk full",
        "",
        "inside",
    ]
    assert read[6].startswith("Error: the tool's result cannot be read: ")
    assert read[7:10] == ["after rubbish", read[8], "from the task"]
    assert read[8].startswith("does still ")
    assert read[10] == "Error: there is no tool 'other'; the tools are: does, bare, nested"
    assert (t.reward, t.failure) == (1.0, None)


async def test_schemas_and_refusals(renderer):
    async with EnvFactory(ENV, {**ODD, "only": ["nested", "bare"]}) as envs:
        env = envs.make()
        t = await rollout(env, TASK, [call("nested", text="refuse"), "blue"], renderer=renderer)
        nested, bare = (spec["function"] for spec in env.tools())
    assert nested["parameters"] == {"type": "object", "properties": {"text": {"type": "string"}}, "$defs": {"A": {}}}
    assert (nested["description"], bare["parameters"]) == ("Nested", {"type": "object", "properties": {}})
    assert t.messages[2]["content"] == "Error: text must be a colour"
    assert t.turns[0].bad_call is not None, "the server blames the call"
    assert t.reward == 0.0


async def test_a_server_that_dies_is_the_worlds_failure(renderer):
    t = await played([call("does", text="die"), "red"], renderer=renderer)
    assert (t.stop, t.failure.kind) == (StopReason.FAILED, "environment")
    assert "is gone; it said: out of cheese" in t.failure.error


async def test_a_server_that_hangs_is_told_and_ended(renderer):
    t = await played([call("does", text="hang"), "red"], renderer=renderer, tool_s=0.3)
    assert t.messages[2]["content"] == "Error: does took longer than 0.3 s"
    assert t.reward == 1.0


async def test_one_server_for_all_comes_back_after_its_death(renderer):
    async with EnvFactory(ENV, {**ODD, "shared": True}) as envs:
        turns = [call("does", text="pid"), "red"]
        one, two = [await rollout(envs.make(), TASK, turns, renderer=renderer) for _ in range(2)]
        dead = await rollout(envs.make(), TASK, [call("does", text="die"), "red"], renderer=renderer)
        three = await rollout(envs.make(), TASK, turns, renderer=renderer)
    pids = [t.messages[2]["content"] for t in (one, two, three)]
    assert pids[0] == pids[1] != pids[2]
    assert dead.failure.kind == "environment"
    assert three.reward == 1.0


@pytest.mark.thorough
async def test_a_task_says_which_server(renderer):
    config = {"servers": {"odd": ODD, "plain": {**ODD, "args": [*ODD["args"], "plain"]}}}
    for name in config["servers"]:
        t = await played([call("does", text="x"), "red"], config, Task(prompt="?", metadata={"server": name}), renderer)
        assert t.failure is None
    with pytest.raises(ConfigError, match="there is no MCP server 'plane'; did you mean plain"):
        await played(["red"], config, Task(prompt="?", metadata={"server": "plane"}), renderer)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "name a server: command, url or servers"),
        ({"command": "x", "url": "http://y"}, "either a command or a url"),
        ({"command": "no-such-program"}, "there is no program 'no-such-program' on PATH"),
        ({**ODD, "args": [*ODD["args"], "--dead"]}, "does not answer: .*; it said: no licence"),
        ({**ODD, "only": ["doe"]}, "there is no tool of .* 'doe'; did you mean does?"),
        ({"url": "http://127.0.0.1:9/mcp"}, "http://127.0.0.1:9/mcp does not answer"),
        ({"url": "http://127.0.0.1:9/mcp", "key": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
    ],
)
async def test_what_cannot_work_is_told_before_the_first_episode(config, said):
    with pytest.raises(ConfigError, match=said) as caught:
        async with EnvFactory(ENV, config):
            pass
    assert "\n" not in str(caught.value)


async def test_files_stay_inside_the_folder(renderer):
    with pytest.raises(ConfigError, match="leaves the episode's folder"):
        await played(["red"], task=Task(prompt="?", metadata={"files": {"../x": "y"}}), renderer=renderer)


async def test_a_program_that_is_no_server_is_told_in_one_line(caplog):
    program = {"command": sys.executable, "args": ["-c", "print('bin'); print('boot')"]}
    with pytest.raises(
        ConfigError, match=r"does not answer: .*; it wrote to stdout something that is not JSON-RPC: 'bin'$"
    ):
        async with EnvFactory(ENV, program):
            pass
    assert not [record for record in caplog.records if record.name.startswith("mcp")], "no traceback of each line"
