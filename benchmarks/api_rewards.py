"""The same model in the same Env, asked through its API with messages and through its tokens: the same rewards.

    python benchmarks/api_rewards.py agentrl_envs.fact_search:FactSearch --model RUN --data held_out.jsonl --limit 100

The API is that of `agentrl serve --openai`, on loopback, and decoding is greedy. Prints a line for each episode with
another reward, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from agentrl import EnvFactory, EpisodeOptions, Limits, Task, Trajectory
from agentrl.chat.client import ChatModel
from agentrl.cli.models import OpenModel, open_model, run_config
from agentrl.engine import ChatEngine, Engine
from agentrl.gateway.serving.standalone import Standalone, running_server
from agentrl.rollout import Rollout, load_tasks, run_groups

GREEDY = 0.0


async def compare(env: str, model: str, data: str, limit: int | None, concurrency: int) -> int:
    """How many episodes have another reward."""
    trained = run_config(model)
    limits = Limits() if trained is None else Limits.of(trained.limits)
    async with open_model(model, "cpu") as opened, EnvFactory(env, {}) as envs:
        tasks = load_tasks(data, split="eval", check=envs.check)[:limit]
        tokens = await _play(envs, opened.engine, opened, limits, tasks, concurrency)
        answering = Standalone(opened.engine, opened.renderer, replace(limits, max_tokens_per_turn=None, tokens=None))
        async with (
            running_server(answering, model_name="m") as url,
            ChatModel(base_url=f"{url}/v1", model="m").kept_open() as chat,
        ):
            api = await _play(envs, ChatEngine(chat, opened.renderer), opened, limits, tasks, concurrency)
    return _report(tokens, api)


async def _play(
    envs: EnvFactory, engine: Engine, opened: OpenModel, limits: Limits, tasks: Sequence[Task], concurrency: int
) -> list[Trajectory]:
    rollout = Rollout(
        envs=envs,
        engine=engine,
        renderer=opened.renderer,
        options=EpisodeOptions(limits=limits),
        concurrency=concurrency,
    )
    started = time.perf_counter()
    groups = await run_groups(rollout, tasks, 1, sampling_params={"temperature": GREEDY}, name="eval")
    sys.stdout.write(f"{type(engine).__name__}: {len(tasks)} episodes, {time.perf_counter() - started:.1f} s\n")
    return [group[0] for group in groups]


def _report(tokens: Sequence[Trajectory], api: Sequence[Trajectory]) -> int:
    pairs = [*zip(tokens, api, strict=True)]
    other = [(one, two) for one, two in pairs if one.reward != two.reward or one.failure or two.failure]
    for one, two in other:
        sys.stdout.write(f"{one.task.id}: by tokens {one!r}; by the API {two!r}\n")
    same = sum(one.tokens == two.tokens for one, two in pairs)
    stops = sum(one.stop == two.stop for one, two in pairs)
    won = sum(one.reward or 0.0 for one in tokens)
    sys.stdout.write(
        f"{len(pairs)} episodes, {sum(len(one.turns) for one in tokens)} turns, {won:g} won by tokens: "
        f"{len(pairs) - len(other)} with the same reward, {stops} that stopped for the same reason, "
        f"{same} equal token for token; {sum('not_carried' in two.info['player'] for two in api)} not carried\n"
    )
    return len(other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--concurrency", type=int, default=16)
    given = parser.parse_args()
    sys.exit(asyncio.run(compare(given.env, given.model, given.data, given.limit, given.concurrency)) > 0)


if __name__ == "__main__":
    main()
