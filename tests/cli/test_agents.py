"""An agent in place of an Env: recorded, trained, evaluated and looked at by the same commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl import Trajectory
from agentrl.models import load_tokenizer, tiny_model
from agentrl.testing import call
from agentrl.testing.chat_server import chat_server

AGENT = '''
from agentrl import AgentEnv
from agentrl.testing import call
from tests.gateway.agents import ask

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}
FACTS = {"France": "The capital of France is Paris.", "Peru": "The capital of Peru is Lima."}


class Capitals(AgentEnv):
    async def run(self, task, endpoint):
        messages = [{"role": "user", "content": task.prompt}]
        while True:
            said = await ask(endpoint, messages, tools=[SEARCH])
            messages.append(said)
            if not said.get("tool_calls"):
                return said["content"]
            for made in said["tool_calls"]:
                result = FACTS.get(task.metadata["country"], "Nothing.")
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})

    def score(self, trajectory):
        return float(self.result == self.task.label)


class Unscored(Capitals):
    def score(self, trajectory):
        return None


def reader(task):
    """Knows nothing but what it reads."""
    read = yield call("search", query=task.metadata["country"])
    yield read.removesuffix(".").split()[-1]
'''
SMALL = """\
steps: 1
prompts_per_step: 2
group_size: 2
limits: {turns: 2, max_tokens_per_turn: 8}
device: cpu
"""
TASKS = [("France", "Paris"), ("Peru", "Lima")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    rows = [{"prompt": f"Capital of {c}?", "label": city, "metadata": {"country": c}} for c, city in TASKS]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_player_in_the_models_place_reads_what_the_agent_says(folder, agentrl):
    command = ("play", "my_agent.py:Capitals", "--data", "tasks.jsonl", "--player", "my_agent.py:reader")
    assert agentrl(*command, "--out", "demos.jsonl") == 0, agentrl.stderr
    assert "mean reward  1.000" in agentrl.stdout
    demos = [Trajectory.from_json(json.loads(line)) for line in (folder / "demos.jsonl").read_text().splitlines()]
    assert [demo.info["result"] for demo in demos] == ["Paris", "Lima"]
    assert all(demo.ledger.trained == demo.ledger.sampled > 0 for demo in demos)
    assert agentrl("show", "demos.jsonl") == 0
    assert "The capital of France is Paris." in agentrl.stdout


@pytest.mark.thorough
def test_an_agent_is_trained_and_evaluated(folder, agentrl):
    pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")
    command = ("train", "my_agent.py:Capitals", "--data", "tasks.jsonl", "--out", "run", "--config", "small.yaml")
    assert agentrl(*command, "--eval-data", "tasks.jsonl") == 0, agentrl.stderr
    (step,) = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["sampled_tokens"] == step["trained_tokens"] > 0
    assert step["failed_episodes"] == step["prefix_breaks"] == 0
    assert agentrl("eval", "my_agent.py:Capitals", "--model", "run", "--data", "tasks.jsonl", "--json") == 0
    assert json.loads(agentrl.stdout)["failed"] == 0
    assert agentrl("show", "run") == 0


def test_an_agent_without_a_reward_cannot_be_trained(folder, agentrl):
    pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")
    command = ("train", "my_agent.py:Unscored", "--data", "tasks.jsonl", "--out", "run", "--config", "small.yaml")
    assert agentrl(*command) == 2
    assert "Unscored gave no episode a reward" in agentrl.stderr


def test_a_template_that_would_lose_reminders_is_refused_at_the_start(folder, agentrl):
    pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")
    tokenizer = load_tokenizer("tiny")
    said = "'<|im_start|>' + m.role + '\n' + (m.content if 'system-reminder' not in m.content else '') + '<|im_end|>\n'"
    asks = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
    tokenizer.chat_template = "{%- for m in messages -%}{{- " + said + " -}}{%- endfor -%}" + asks
    tiny_model().save_pretrained("deaf")
    tokenizer.save_pretrained("deaf")
    train = ("train", "my_agent.py:Capitals", "--model", "deaf", "--data", "tasks.jsonl", "--out", "run")
    for command in ((*train, "--config", "small.yaml"), ("serve", "--model", "deaf", "--openai", "--port", "0")):
        assert agentrl(*command) == 2
        assert "deaf cannot be used with agents: a system message after a user would be lost" in agentrl.stderr


def test_an_api_model_plays_through_an_agent(folder, agentrl):
    asked = []

    def reply(messages, tools):
        """Search, then read the city; wrong about Peru every second time."""
        asked.append(messages)
        if messages[-1]["role"] == "user":
            return call("search", query=messages[-1]["content"])
        city = messages[-1]["content"].removesuffix(".").split()[-1]
        return "Cusco" if city == "Lima" and sum("Lima" in str(m[-1]) for m in asked) % 2 else city

    command = ("eval", "my_agent.py:Capitals", "--data", "tasks.jsonl", "--model", "gpt", "--samples", "2")
    with chat_server(reply) as api:
        command = (*command, "--api", api.url, "--out", "r.jsonl", "--concurrency", "1", "--json", "--prices", "10,100")
        assert agentrl(*command) == 0, agentrl.stderr
        figures = json.loads(agentrl.stdout)
        requests = len(api.requests)
        assert [tool["function"]["name"] for tool in api.requests[0]["tools"]] == ["search"]
        assert (figures["episodes"], figures["failed"], figures["reward_mean"]) == (4, 0, 0.75), figures
        assert figures["pass_at"]["2"]["mean"] == 1.0
        assert (figures["usage"]["requests"], figures["usage"]["cost"] > 0) == (requests, True)

        rows = (folder / "r.jsonl").read_text().splitlines(keepends=True)
        (folder / "r.jsonl").write_text("".join(rows[:3]))
        assert agentrl(*command) == 0, agentrl.stderr
        assert "3 finished" in agentrl.stderr
        assert len(api.requests) == requests + 2, "only the missing episode was played"

    played = [Trajectory.from_json(json.loads(row)) for row in rows]
    assert {trajectory.info["player"]["model"] for trajectory in played} == {"gpt"}
    assert all(t.ledger.trained == 0 < t.ledger.sampled for t in played)
