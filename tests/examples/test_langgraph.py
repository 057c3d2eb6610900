"""The quickstart's task, played by a graph of LangGraph in which one line was changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("langgraph", reason="examples/langgraph needs langgraph, langchain and langchain-openai")
pytest.importorskip("langchain_openai", reason="examples/langgraph needs langgraph, langchain and langchain-openai")

from agentrl import EnvFactory, Limits, Trajectory
from agentrl._util.concurrency import gather
from agentrl._util.loading import load_object
from agentrl.rollout import tasks_of
from agentrl.testing import call, rollout

FOLDER = Path(__file__).parents[2] / "examples" / "langgraph"
ENV = f"{FOLDER / 'env.py'}:Assistant"


async def test_episodes_at_once_keep_their_tools_and_models_apart():
    gold = load_object(f"{FOLDER / 'env.py'}:gold")
    async with EnvFactory(ENV) as envs:
        tasks = tasks_of(envs, None, "train")
        played = await gather([rollout(envs.make(), task, gold(task)) for task in tasks])
    assert len(played) == 26
    assert [one.reward for one in played] == [1.0] * 26
    assert all(one.ledger.sampled == one.ledger.trained > 0 for one in played)
    assert {one.tools[0]["function"]["name"] for one in played} == {"lookup"}


async def test_mistakes_of_the_model_are_no_failures():
    wrong = [
        ["sunny"],
        [call("look", place="town"), "I do not know."],
        [call("lookup", at="town"), "I do not know."],
        [call("lookup", place="moon"), "I do not know."],
        ['<tool_call>\n{"name": "lookup", "argum</tool_call>'],
        [""],
        [call("lookup", place="town")] * 5,
    ]
    async with EnvFactory(ENV) as envs:
        (task, *_) = tasks_of(envs, None, "eval")
        for script in wrong:
            played: Trajectory = await rollout(envs.make(), task, script, limits=Limits(turns=4))
            expected = float(script == [task.label])
            assert (played.failure, played.reward) == (None, expected), script
            assert played.ledger.sampled == played.ledger.trained > 0


def test_the_changed_lines_are_those_of_the_readme():
    diff = re.search(r"```diff\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)[1].splitlines()
    changed = [line[1:].strip() for line in diff if line.startswith("+")]
    lines = [line.strip() for line in (FOLDER / "graph.py").read_text().splitlines()]
    assert 0 < len(changed) <= 5
    assert all(lines.count(line) == 1 for line in changed)
    assert "agentrl" not in "\n".join(lines)
