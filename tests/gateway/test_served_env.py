"""The demo's task played by a plain OpenAI client in front of `serve --openai`, and as an Env: the same tokens, so the
same rewards."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import openai
import pytest

from agentrl import EnvFactory, EpisodeOptions, Limits, Task, run_episode
from agentrl.engine import Engine, ScriptedEngine
from agentrl.env.env import tools_of
from agentrl.gateway.serving.standalone import Standalone, running_server
from agentrl.testing import call
from agentrl_envs.fact_search import FactSearch
from agentrl_envs.fact_search.facts import Index, load_facts

GREEDY = 0.0
LIMITS = Limits(turns=5, max_tokens_per_turn=48, context=400)
TOOLS = [made.spec for made in tools_of(FactSearch).values()]


ONE, TWO = "What country is {} in?", "What is the capital of the country that {} is in?"
TASKS = [
    Task(prompt=prompt.format(city), label=label, metadata={"searches": searches})
    for prompt, city, label, searches in (
        (TWO, "Marseille", "Paris", ["Marseille", "France"]),
        (ONE, "Porto", "Portugal", ["Porto"]),
        (TWO, "Porto", "Lisbon", ["Porto", "Portugal"]),
        (ONE, "Osaka", "Japan", ["Osaka"]),
        (ONE, "Marseille", "France", ["Marseille"]),
    )
]


def player(renderer) -> ScriptedEngine:
    """A model that sees nothing but tokens: it searches and answers, guesses, answers wrongly, or calls what is not."""

    def says(ids: Sequence[int]):
        text = renderer.decode(ids)
        at, task = next((i, task) for i, task in enumerate(TASKS) if task.prompt in text)
        read, searches = text.count("<tool_response>"), task.metadata["searches"]
        if at % 4 == 1:
            return f"Answer: {task.label}"
        if at % 4 == 2 and not read:
            return call("lookup", query="?")
        if read - (at % 4 == 2) < len(searches):
            return call("search", query=searches[read - (at % 4 == 2)])
        return f"Answer: {'Ur' if at % 4 == 3 else task.label}"

    return ScriptedEngine(says, renderer)


async def through_tokens(engine: Engine, renderer) -> list[float]:
    options = EpisodeOptions(limits=LIMITS, sampling_params={"temperature": GREEDY})
    async with EnvFactory(FactSearch, {}) as envs:
        played = [await run_episode(envs.make(), t, engine=engine, renderer=renderer, options=options) for t in TASKS]
    assert all(trajectory.failure is None for trajectory in played)
    return [trajectory.reward for trajectory in played]


async def through_a_client(engine: Engine, renderer) -> list[float]:
    answering = Standalone(engine, renderer, Limits(context=LIMITS.context))
    async with (
        running_server(answering, model_name="m") as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        index = Index(load_facts().passages())
        return [await agent(client, task, index) for task in TASKS]


async def agent(client: openai.AsyncOpenAI, task: Task, index: Index) -> float:
    """An agent as anybody would write it, its reward by the Env's rule."""
    messages: list = [{"role": "user", "content": task.prompt}]
    read = ""
    for _ in range(LIMITS.turns):
        answer = await client.chat.completions.create(
            model="m", messages=messages, tools=TOOLS, temperature=GREEDY, max_tokens=LIMITS.max_tokens_per_turn
        )
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            found = re.search(rf"\b{re.escape(task.label)}\b", read)
            return float(found is not None and said.content == f"Answer: {task.label}")
        for asked in said.tool_calls:
            result = search(index, asked.function.name, json.loads(asked.function.arguments))
            read += result + "\n"
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": result})
    return 0.0


def search(index: Index, name: str, arguments: dict) -> str:
    if name != "search":
        return f"Error: there is no tool {name!r}; the tools are: search"
    return "\n".join(index.search(arguments["query"], 1)) or "No result."


@pytest.mark.thorough
async def test_a_client_scores_as_the_env_does(renderer) -> None:
    engines = player(renderer), player(renderer)
    rewards = await through_tokens(engines[0], renderer)
    assert rewards == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert await through_a_client(engines[1], renderer) == rewards
    assert engines[1].requests == engines[0].requests
