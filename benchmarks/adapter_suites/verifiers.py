"""verifiers: compare its own runner with examples/verifiers, on environments of its repository, with right and wrong
answers.

    git clone https://github.com/PrimeIntellect-ai/verifiers /tmp/verifiers
    .ci/hosts.sh FOLDER verifiers
    FOLDER/verifiers/bin/python -m benchmarks.adapter_suites.verifiers /tmp/verifiers/environments [NAME...]

A player answers as an environment asks: right in about half of the turns, and wrong in the others. The data sets that
an environment would download have a few rows of the same columns here. The same seeds give the same answers in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from agentrl import EnvFactory, Limits
from agentrl.testing import call, rollout
from agentrl.testing.chat_server import chat_server

ENV = f"{Path(__file__).resolve().parents[2]}/examples/verifiers/env.py:Verifiers"
TASKS, SEEDS = 4, 2
NAMES = ["AnaLopez", "BoLi", "CarlMeier", "DaraKhan", "EvaNovak", "FinnOlsen", "GilRossi", "HanaSato", "IvoKral"]
ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "openai/gsm8k": [{"question": f"What is 7 times {n}?", "answer": f"7 * {n}\n#### {7 * n}"} for n in range(2, 12)],
    "PrimeIntellect/Reverse-Text-RL": [{"prompt": f"The {name} of the north"} for name in NAMES],
    "kalomaze/alphabetic-arxiv-authors-it1": [{"names": [*NAMES, *(f"Zoe{n}" for n in NAMES)]} for _ in range(3)],
}
"""The name of a data set -> rows of the same columns."""


def quoted(data: Mapping[str, Any]) -> str:
    return re.findall(r'"(.+?)"', data["prompt"])[0]


def after_a_tool(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Any:
    """A call with the quoted word of the prompt, then the tool's result."""
    if messages[-1]["role"] == "tool":
        content = messages[-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        return f"<answer>{text}</answer>"
    tool = tools[0].get("function") or tools[0]
    return call(tool["name"], **{name: quoted(data) for name in tool["parameters"]["properties"]})


def sorted_names(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    turn = sum(message["role"] == "assistant" for message in messages)
    tag = "combined_alphabetical_sorted" if turn else "alphabetical_sorted"
    names = "\n".join(data["info"]["ground_truths"][turn])
    return f"<{tag}>\n{names}\n</{tag}>"


def proposed(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    if "Invent ONE" in str(messages[-1]["content"]):
        return json.dumps({"problem": "What is 6 times 7?", "answer": 42})
    return "It is 42"


GOLD: Mapping[str, Callable[..., Any]] = {
    "alphabet_sort": sorted_names,
    "code_golf": lambda data, messages, tools: f"```python\nprint({data['expected']!r})\n```",
    "glossary": after_a_tool,
    "gsm8k": lambda data, messages, tools: f"#### {data['answer']}",
    "interception": lambda data, messages, tools: data["prompt"].removeprefix("Reply with exactly ").rstrip("."),
    "proposer_solver": proposed,
    "reverse_text": lambda data, messages, tools: f"<reversed_text>{data['answer']}</reversed_text>",
    "scratchpad": after_a_tool,
}
"""Environment -> the right turn for a task's data, the messages and the tools."""


def player(name: str, data: Mapping[str, Any], seed: int) -> Callable[..., Any]:
    calls = 0

    def reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Any:
        nonlocal calls
        calls += 1
        right = Random(f"{name} {seed} {calls}").random() < 0.6 or "Invent ONE" in str(messages[-1]["content"])
        return GOLD[name](data, messages, tools) if right else f"I do not know {seed}."

    return reply


async def theirs(host: Any, task: Any, answers: Callable[..., Any]) -> tuple[Any, ...]:
    """Reward and number of turns, or the error."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    with chat_server(answers) as server:
        client = EvalClientConfig(base_url=server.url, api_key_var="AGENTRL_NO_KEY")
        episode = await host.run_episode(task, ModelContext("scripted", client))
    if errors := [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
        return ("error", str(errors[0])[-160:])
    turns = sum(node.message.role == "assistant" for trace in episode.traces for node in trace.nodes)
    return sum(trace.reward for trace in episode.traces), turns


async def compare(name: str) -> dict[str, Any]:
    pairs = []
    async with EnvFactory(ENV, {"taskset": name, "harness": "null"}) as envs:
        host = envs.shared
        rows = [*islice(host.taskset, 5 * TASKS)]
        for task in islice(envs.cls.tasks(envs.config, "train"), TASKS):
            row = rows[task.seed - 1]
            data = row.data.model_dump(mode="json")
            for seed in range(SEEDS):
                expected = await theirs(host, row, player(name, data, seed))
                t = await rollout(envs.make(), task, player(name, data, seed), limits=Limits(turns=40))
                ours = ("error", t.failure.error[-160:]) if t.failure else (t.reward, t.turn_count)
                pairs.append((expected, ours))
                print(name, task.id, seed, expected, ours, file=sys.stderr, flush=True)
    return {
        "name": name,
        "episodes": len(pairs),
        "equal": sum(expected == ours for expected, ours in pairs),
        "errors": sum(expected[0] == "error" for expected, _ in pairs),
        "rewards": sorted({expected[0] for expected, _ in pairs if expected[0] != "error"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder `environments` of verifiers' repository")
    parser.add_argument("names", nargs="*", default=[*GOLD])
    args = parser.parse_args()
    local = ModuleType("datasets")
    local.load_dataset = lambda name, *parts, **words: ROWS[name]  # type: ignore[attr-defined]
    sys.modules["datasets"] = local
    for name in args.names:
        sys.path.append(str(args.folder / name))
        print(json.dumps(asyncio.run(asyncio.wait_for(compare(name), 600))), flush=True)


if __name__ == "__main__":
    main()
