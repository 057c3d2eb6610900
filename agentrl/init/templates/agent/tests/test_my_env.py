"""A perfect player wins and an idle one does not. Run with: python -m pytest"""

import asyncio
from typing import Any

from my_env import MyEnv, gold, noop

from agentrl import EnvFactory
from agentrl.rollout import tasks_of
from agentrl.testing import rollout


def rewards(player: Any) -> list[float | None]:
    """The rewards of a few episodes, played as a run plays them."""

    async def play() -> list[float | None]:
        async with EnvFactory(MyEnv) as envs:
            tasks = tasks_of(envs, None, "train", episodes=4)
            return [(await rollout(envs.make(), task, player(task))).reward for task in tasks]

    return asyncio.run(play())


def test_a_perfect_player_always_wins() -> None:
    assert rewards(gold) == [1.0] * 4


def test_an_idle_player_never_wins() -> None:
    assert rewards(noop) == [0.0] * 4
