"""Whatever a step or an evaluation waits for is named: which episode, what it does, and since when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict, deque

import pytest

from agentrl import Env, EnvFactory, Generation, StepResult, Task, tool
from agentrl.episode.options import EpisodeOptions
from agentrl.rollout import Rollout, evaluate, run_groups
from agentrl.rollout.play import in_flight, waiting
from agentrl.rollout.play.in_flight import flying, late
from tests.rollout.fakes import Fake


class Hangs(Env):
    """Waits where the task says."""

    released: asyncio.Event

    async def pause(self, place):
        if self.task.id == place:
            await self.released.wait()

    async def reset(self, task):
        await self.pause("reset")
        return "begin"

    @tool
    async def search(self, query: str) -> str:
        """Search.

        Args:
            query: The words.
        """
        await self.pause("tool search")
        return "nothing"

    async def step(self, action):
        if action.calls:
            return await self.run_tools(action)
        await self.pause("step")
        return StepResult(done=True)

    async def score(self, trajectory):
        await self.pause("score")
        return 1.0


class Player(Fake):
    """Calls a tool, then answers. It waits at its first turn if `hangs`."""

    hangs = False

    def __init__(self, renderer):
        super().__init__(renderer)
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
        self.call = renderer.encode({"role": "assistant", "content": "", "tool_calls": [call]})

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        if self.hangs:
            await Hangs.released.wait()
        first = session_id not in self.asked
        self.asked[session_id] = dict(sampling_params)
        tokens = self.call if first else self.tokens
        return Generation(tokens, [-0.5] * len(tokens), "stop", weight_version="0")


def noticed(text, monkeypatch):
    """An event that is set when a warning holds the text."""
    event, warn = threading.Event(), waiting.log.warning

    def warning(form, *values):
        warn(form, *values)
        if text in form % values:
            event.set()

    monkeypatch.setattr(waiting.log, "warning", warning)
    return event


PLACES = ["reset", "engine", "tool search", "step", "score"]


@pytest.mark.parametrize("place", PLACES)
async def test_the_line_names_the_episode_what_it_does_and_since_when(place, renderer, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "EVERY_S", 0.02)
    named = noticed(f"({place} for", monkeypatch)
    Hangs.released = asyncio.Event()
    player = Player(renderer)
    player.hangs = place == "engine"
    rollout = Rollout(envs=EnvFactory(Hangs), engine=player, renderer=renderer, options=EpisodeOptions())
    playing = asyncio.create_task(evaluate(rollout, [Task(prompt="p", id=place)]))
    async with asyncio.timeout(30):
        await asyncio.to_thread(named.wait)
        Hangs.released.set()
        assert (await playing).metrics.episodes == 1
    line = next(record.getMessage() for record in caplog.records if f"({place} for" in record.getMessage())
    assert line.startswith("the evaluation waits for 1 of 1 in flight that have not moved for a minute: eval-")
    assert f"of task {place!r} ({place} for 0 s, after" in line
    assert line.endswith("limits.episode_s bounds an episode")


async def test_an_env_that_blocks_the_loop_is_named(renderer, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "EVERY_S", 0.02)
    named = noticed("(reset for", monkeypatch)

    class Blocks(Hangs):
        async def reset(self, task):
            named.wait(30)
            return "begin"

    rollout = Rollout(envs=EnvFactory(Blocks), engine=Player(renderer), renderer=renderer, options=EpisodeOptions())
    await run_groups(rollout, [Task(prompt="p", id="x")], 1, step=3)
    assert "step 3 waits for 1 of 1" in caplog.text


def test_what_moves_is_not_named(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "EVERY_S", 60.0)
    with flying("train-1", "a") as _:
        assert waiting.line_about("step 1", "train", time.time()) == ""
    assert "none of its episodes is played" in waiting.line_about("step 1", "train", time.time() - 120)


def test_an_episode_is_late_beside_those_that_have_ended(monkeypatch):
    monkeypatch.setattr(in_flight, "DURATIONS", defaultdict(deque))
    monkeypatch.setattr(in_flight, "_LATE_S", 0.0)
    with flying("train-1-0", "a"):
        assert late("train") == []  # nothing to compare with
        with flying("train-2-0", "a"):
            pass
        in_flight.DURATIONS["train"].clear()
        in_flight.DURATIONS["train"].append(0.0)
        assert [flight.name for flight in late("train")] == ["train-1-0"]
        assert late("eval") == []
        in_flight.DURATIONS["train"].append(1e6)
        assert late("train") == []
