"""`agentrl check` finds nothing in what is shipped. By default one example is checked; all with AGENTRL_CHECK=all."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import islice
from pathlib import Path

import pytest

from agentrl._util.loading import load_object
from agentrl.check import CheckInputs, check
from agentrl.env.factory import EnvFactory
from agentrl.rollout.data.own_tasks import makes_tasks, own_tasks
from agentrl.rollout.data.tasks import load_tasks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ALL = os.environ.get("AGENTRL_CHECK") == "all"
FACTS = "agentrl_envs.fact_search.players"
SHIPPED = {
    "customer_service": (
        f"{EXAMPLES}/customer_service/service.py:CustomerService",
        f"{EXAMPLES}/customer_service/people.py",
        {},
    ),
    "fact_search": ("agentrl_envs.fact_search:FactSearch", FACTS, {}),
    "agents_sdk": (f"{EXAMPLES}/agents_sdk/env.py:Assistant", FACTS, {}),
    "mcp_tools": (
        f"{EXAMPLES}/mcp_tools/env.py:McpTools",
        f"{EXAMPLES}/mcp_tools/env.py",
        {"args": [f"{EXAMPLES}/mcp_tools/server.py"]},
    ),
    "retool": (f"{EXAMPLES}/retool/retool.py:ReTool", None, {"backend": "local"}),
    "coding": ("agentrl_envs.coding:CodingEnv", "agentrl_envs.coding", {"backend": "local"}),
    "search_r1": ("agentrl_envs.search_r1:SearchR1", None, {}),
}


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHIPPED if ALL else ["customer_service"])
def test_a_shipped_environment_passes(renderer, tmp_path, name) -> None:
    env, players, config = SHIPPED[name]
    config = {**config, **config_of(name, tmp_path)}
    envs = EnvFactory(env, config)
    tasks = tasks_of(name, envs, tmp_path)
    kinds = ("gold", "noop") if players and name != "mcp_tools" else ("gold",) if players else ()
    known = {kind: load_object(f"{players}:{kind}") for kind in kinds}
    report = asyncio.run(
        check(CheckInputs(env=env, tasks=tasks, renderer=renderer, config=config, process=ALL, **known))
    )
    assert report.mistakes == []
    assert {"players", "leaks", "cancellation"} <= report.checked.keys()


def config_of(name: str, folder: Path) -> dict:
    if name != "search_r1":
        return {}
    corpus = folder / "corpus.jsonl"
    text = '"{0}"\n{0} is a country. Its capital is {1}.'
    rows = [
        {"id": str(n), "contents": text.format(*pair)} for n, pair in enumerate((("France", "Paris"), ("Peru", "Lima")))
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"retriever": str(corpus)}


def tasks_of(name: str, envs: EnvFactory, folder: Path) -> list:
    if makes_tasks(envs.cls):
        return list(islice(own_tasks(envs, "eval", most=2), 2))
    if name in ("fact_search", "agents_sdk"):
        return load_object("agentrl_envs.fact_search:make_tasks")("eval", 2)
    data = {
        "mcp_tools": EXAMPLES / "mcp_tools" / "tasks.jsonl",
        "retool": EXAMPLES / "retool" / "problems.jsonl",
    }.get(name, folder / "tasks.jsonl")
    if not data.exists():
        row = {"prompt": "What is the capital of France?", "label": ["Paris"]}
        data.write_text(json.dumps(function_task(folder) if name == "coding" else row) + "\n")
    return load_tasks(data, split="eval")[:2]


def function_task(folder: Path) -> dict:
    (folder / "add" / "solution").mkdir(parents=True)
    (folder / "add" / "add.py").write_text("def add(a, b):\n    raise NotImplementedError\n")
    (folder / "add" / "solution" / "add.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "add" / "add_test.py").write_text("from add import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    (folder / "add" / "instruction.md").write_text("Write add.\n")
    return {"prompt": "Write add.", "metadata": {"format": "folder", "path": str(folder / "add")}}
