"""verifiers: compare its own runner with examples/verifiers, on environments of public repositories, with right, wrong
and malformed answers.

    git clone https://github.com/PrimeIntellect-ai/verifiers /tmp/verifiers
    git clone https://github.com/carbonteq-ai/verifiers-environments /tmp/carbonteq
    .ci/hosts.sh FOLDER verifiers
    FOLDER/verifiers/bin/pip install langdetect reasoning-gym
    FOLDER/verifiers/bin/python -m benchmarks.adapter_suites.verifiers /tmp/verifiers /tmp/carbonteq --name gsm8k

Each task is played four times: with right turns, with the right turns of another task, with turns that cannot be read,
and with right turns among others. The data sets that an environment would download have a few rows of the same columns
here. Both runners get the same turns. An environment counts as compared if its episodes have different rewards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import datasets

from agentrl import EnvFactory, Limits
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.render import Renderer, load_renderer
from agentrl.testing import call, rollout
from agentrl.testing.chat_server import chat_server
from tests.doubles import tiny_vlm

ENV = f"{Path(__file__).resolve().parents[2]}/examples/verifiers/env.py:Verifiers"
TASKS, TURNS = 2, 3
KINDS = ("right", "another", "malformed", "mixed")
NAMES = ["AnaLopez", "BoLi", "CarlMeier", "DaraKhan", "EvaNovak", "FinnOlsen", "GilRossi", "HanaSato", "IvoKral"]
SUMS = [{"question": f"What is 7 times {n}?", "answer": f"7 * {n}\n#### {7 * n}"} for n in range(2, 12)]
ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "openai/gsm8k": SUMS,
    "sums": SUMS,
    "PrimeIntellect/Reverse-Text-RL": [{"prompt": f"The {name} of the north"} for name in NAMES],
    "kalomaze/alphabetic-arxiv-authors-it1": [{"names": [*NAMES, *(f"Zoe{n}" for n in NAMES)]} for _ in range(3)],
    "instructions": [
        {
            "key": n,
            "prompt": f"Write with {n} placeholders such as [name], and no comma.",
            "instruction_id_list": ["detectable_content:number_placeholders", "punctuation:no_comma"],
            "kwargs": [{"num_placeholders": n}, {"num_placeholders": None}],
        }
        for n in range(2, 12)
    ],
    "choices": [
        {
            "question_id": n,
            "question": f"Which number is {n}?",
            "options": ["7", "8", "9", "10"],
            "answer": "ABCD"[n - 7],
            "answer_index": n - 7,
            "cot_content": "",
            "category": "math",
        }
        for n in (7, 8, 9, 10)
    ],
    "DigitalLearningGmbH/MATH-lighteval": [
        {"problem": f"What is {n} + 1?", "solution": f"\\boxed{{{n + 1}}}", "level": "1", "type": "Algebra"}
        for n in range(9)
    ],
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
    names = "\n".join(data["info"]["ground_truths"][min(turn, data["info"]["num_turns"] - 1)])
    return f"<{tag}>\n{names}\n</{tag}>"


def proposed(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    if "Invent ONE" in str(messages[-1]["content"]):
        return json.dumps({"problem": "What is 6 times 7?", "answer": 42})
    return f"It is {42 + (data['topic'] != 'rates and mixtures')}"


def command(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Any:
    """The command of the prompt, then a word."""
    if messages[-1]["role"] == "tool":
        return "Done."
    return call("bash", command=re.findall(r"`(.+?)`", data["prompt"])[0])


def legal(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    """The last of the actions that the prompt names."""
    return re.findall(r"\[\w+\]", str(messages[-1]["content"]))[-1]


def letters(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
    return str(data["answer"])


@dataclass(frozen=True, slots=True)
class Case:
    right: Callable[..., Any]
    """The right turn for a task's data, the messages and the tools."""
    harness: str = "one_reply"
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of examples/verifiers."""
    sees: bool = False
    """Whether the model reads images."""


CASES: Mapping[str, Case] = {
    "alphabet_sort": Case(sorted_names),
    "bash_interception": Case(command, harness="bash"),
    "code_golf": Case(lambda data, messages, tools: f"```python\nprint({data['expected']!r})\n```"),
    "color_codeword": Case(letters, sees=True),
    "glossary": Case(after_a_tool, harness="null"),
    "gsm8k": Case(lambda data, messages, tools: f"#### {data['answer']}"),
    "gsm8k_v1": Case(lambda data, messages, tools: f"#### {data['answer']}", options={"dataset_repo": "sums"}),
    "ifeval_v1": Case(
        lambda data, messages, tools: "[name] " * data["instruction_kwargs"][0]["num_placeholders"],
        options={"dataset_repo": "instructions"},
    ),
    "interception": Case(lambda data, messages, tools: data["prompt"].removeprefix("Reply with exactly ").rstrip(".")),
    "kuhn_poker": Case(legal, config={"agent": "player0"}),
    "math_python_v1": Case(lambda data, messages, tools: f"\\boxed{{{data['answer']}}}"),
    "mmlu_pro_v1": Case(
        lambda data, messages, tools: f"the answer is ({data['answer']})", options={"dataset_repo": "choices"}
    ),
    "proposer_solver": Case(proposed, config={"env": {"n": 2}}),
    "reasoning_gym_v1": Case(letters),
    "reverse_text": Case(lambda data, messages, tools: f"<reversed_text>{data['answer']}</reversed_text>"),
    "scratchpad": Case(after_a_tool, harness="null"),
}


def seeing() -> Renderer:
    model = str(tiny_vlm.folder())
    return load_renderer(load_tokenizer(model), vision=load_vision(model))


def player(case: Case, kind: str, data: Mapping[str, Any], another: Mapping[str, Any]) -> Callable[..., Any]:
    calls = 0

    def reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Any:
        nonlocal calls
        calls += 1
        if kind == "malformed":
            return '<answer>\n<tool_call>\n{"name": "lookup", "arguments": \n</tool_call>'
        if kind == "mixed" and Random(f"{data} {calls}").random() < 0.4:
            return "I do not know."
        return case.right(another if kind == "another" else data, messages, tools)

    return reply


async def theirs(host: Any, task: Any, answers: Callable[..., Any], agent: str) -> tuple[Any, ...]:
    """Reward and number of turns, or the error. Of several agents the reward of `agent` counts, or else the sum."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    with chat_server(answers) as server:
        client = EvalClientConfig(base_url=server.url, api_key_var="AGENTRL_NO_KEY")
        episode = await host.run_episode(task, ModelContext("scripted", client))
    if errors := [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
        return ("error", str(errors[0])[-160:])
    turns = sum(node.message.role == "assistant" for trace in episode.traces for node in trace.nodes)
    return sum(trace.reward for trace in episode.traces if not agent or trace.agent.name == agent), turns


async def compare(name: str, case: Case) -> dict[str, Any]:
    pairs = []
    renderer = seeing() if case.sees else None
    config = {"taskset": name, "harness": case.harness, "options": case.options, **case.config}
    async with EnvFactory(ENV, config) as envs:
        host = envs.shared
        rows = [*islice(host.taskset, 5 * TASKS)]
        for task in islice(envs.cls.tasks(envs.config, "train"), TASKS):
            row = rows[task.seed - 1]
            data, another = (each.data.model_dump(mode="json") for each in (row, rows[task.seed % len(rows)]))
            for kind in KINDS:
                expected = await theirs(host, row, player(case, kind, data, another), envs.config.agent)
                answers: Any = player(case, kind, data, another)
                if case.sees:  # only a list of turns can play where there are images
                    answers = [answers([], []) for _ in range(TURNS)]
                t = await rollout(envs.make(), task, answers, renderer=renderer, limits=Limits(turns=40))
                ours = ("error", t.failure.error[-160:]) if t.failure else (t.reward, t.turn_count)
                pairs.append((expected, ours))
                print(name, task.id, kind, expected, ours, file=sys.stderr, flush=True)
    return {
        "name": name,
        "episodes": len(pairs),
        "equal": sum(expected == ours or expected[0] == ours[0] == "error" for expected, ours in pairs),
        "errors": sum(expected[0] == "error" for expected, _ in pairs),
        "rewards": sorted({expected[0] for expected, _ in pairs if expected[0] != "error"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="the repositories, each with a folder `environments`")
    parser.add_argument("--name", choices=CASES, action="append")
    args = parser.parse_args()
    datasets.load_dataset = lambda name, *parts, **words: datasets.Dataset.from_list(ROWS[name])
    paths = [path for folder in args.folders for kind in ("*", "*/src") for path in folder.glob(f"environments/{kind}")]
    sys.path[:0] = map(str, paths)
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])  # for tools
    sys.modules["one_reply"] = import_module("benchmarks.adapter_suites.one_reply")
    for name in args.name or CASES:
        try:
            figures = asyncio.run(asyncio.wait_for(compare(name, CASES[name]), 900))
        except Exception as error:  # noqa: BLE001 - an environment that does not open here
            figures = {"name": name, "episodes": 0, "error": f"{type(error).__name__}: {error}"[-300:]}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
