"""Episodes that wake together: the loop serves others between them, and each gets its turn in order."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.episode import gate
from agentrl.episode.gate import Gate


class Clock:
    """A clock that only work moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(gate.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def rounds_of(entered: Gate, clock: Clock, episodes: int, cost: float) -> list[list[int]]:
    """Which episodes did their work in each round of the loop, if all wake together."""
    rounds, running = [[]], True

    async def other() -> None:
        while running:
            await asyncio.sleep(0)
            rounds.append([])

    async def episode(number: int) -> None:
        await entered.enter()
        clock.now += cost
        rounds[-1].append(number)

    beside = asyncio.create_task(other())
    await asyncio.gather(*map(episode, range(episodes)))
    running = False
    await beside
    return [numbers for numbers in rounds if numbers]


async def test_a_round_has_a_few_milliseconds_of_work(clock: Clock) -> None:
    rounds = await rounds_of(Gate(), clock, 200, cost=0.001)
    assert [number for numbers in rounds for number in numbers] == list(range(200)), "in the order of arrival"
    assert max(map(len, rounds)) <= 5
    assert max(map(len, rounds[20:])) == 4, "as many as fit into the time, once the cost is known"


async def test_work_longer_than_a_round_is_done_one_by_one(clock: Clock) -> None:
    rounds = await rounds_of(Gate(), clock, 20, cost=0.05)
    assert all(len(numbers) == 1 for numbers in rounds[5:])
    assert sum(map(len, rounds)) == 20


async def test_a_single_episode_never_waits(clock: Clock) -> None:
    entered = Gate()
    for _ in range(10):
        step = entered.enter().__await__()
        with pytest.raises(StopIteration):
            next(step)
        clock.now += 0.05
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_cancelled_episode_takes_nobody_s_place(clock: Clock) -> None:
    entered, done = Gate(), list[int]()

    async def episode(number: int) -> None:
        await entered.enter()
        clock.now += 0.01
        done.append(number)

    tasks = [asyncio.create_task(episode(number)) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks[3:7]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 1, 2, 7, 8, 9]
