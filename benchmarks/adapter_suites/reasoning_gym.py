"""Play reasoning-gym's data sets: with right answers, with answers to other questions, and without tags."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from agentrl import EnvFactory, Task
from agentrl.testing import rollout
from benchmarks.adapter_suites.both import ExcludedError, Row, refused, renderer, run

ENV = "agentrl_envs.adapters.reasoning_gym:ReasoningGym"
SIZE = 4


def plays(dataset: Any) -> list[tuple[int, str | None, float]]:
    """Tuples of index, answer, and the data set's score of the answer."""
    entries = [dataset[index] for index in range(SIZE)]
    said = list[tuple[int, str | None]]()
    for index, entry in enumerate(entries):
        other = entries[(index + 1) % SIZE]["answer"] or "0 1 2"
        said += [(index, entry["answer"]), (index, str(other)), (index, None)]
    return [(i, answer, float(dataset.score_answer(answer=answer, entry=entries[i]))) for i, answer in said]


async def adapted(envs: EnvFactory, tasks: list[Task], expected: list[tuple[int, str | None, float]]) -> list[float]:
    async def one(index: int, answer: str | None) -> float:
        turn = "I do not know." if answer is None else f"It is this: <answer>{answer}</answer>"
        t = await rollout(envs.make(), tasks[index], [turn], renderer=renderer())
        assert t.failure is None, t.failure and t.failure.error
        return float(t.reward or 0.0)

    return [await one(index, answer) for index, answer, _ in expected]


async def compare(name: str) -> Row:
    rewards, gold = [], []
    async with EnvFactory(ENV, {"dataset": name, "size": SIZE}) as envs:
        for split, seed in (("train", 0), ("eval", 1 << 31)):
            expected = plays(reasoning_gym.create_dataset(name, seed=seed, size=SIZE))
            tasks = list(islice(envs.cls.tasks(envs.config, split), SIZE))  # type: ignore[arg-type]
            got = await adapted(envs, tasks, expected)
            for (index, answer, own), reward in zip(expected, got, strict=True):
                assert reward == own, f"{split} {index}, answer {answer!r:.60}: {reward}, by its own API {own}"
            rewards += got
            gold += [own == 1.0 for index, (_, answer, own) in enumerate(expected) if index % 3 == 0 and answer]
    return {"result": "passed", "episodes": len(rewards), "nonzero": sum(map(bool, rewards)), "gold": all(gold)}


def play(name: str) -> Row:
    said = refused(ENV, {"dataset": name, "size": SIZE})
    if said is not None:
        mixture = "Must specify at least one dataset" in said
        raise ExcludedError("is a mixture, whose parts its options must name" if mixture else said[:120])
    return asyncio.run(compare(name))


if __name__ == "__main__":
    run(list(DATASETS), play)
