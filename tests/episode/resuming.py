"""Envs that resume in each of the three ways, and a host that aborts their episodes."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import dataclass, field, replace

from agentrl import (
    Env,
    Limits,
    StopReason,
    Task,
    TurnOptions,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.resume import resume_episode
from agentrl.episode.state import Parked
from agentrl.testing import call

TASK = Task(prompt="Add up.", label=6.0, seed=3)


SCRIPT = [call("add", n=1), call("add", n=2), call("add", n="x"), call("add", n=3), "Done."]


added: list[int] = []
"""The side effects."""


closed: list[Env] = []


class Sum(Env):
    """What it answers depends on all that happened before, random numbers included."""

    turn_options = TurnOptions(max_tokens=60)

    async def reset(self, task):
        self.total = 0
        return task.prompt

    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        added.append(n)
        self.total += n
        return f"{self.total} {self.rng.random()}"

    async def step(self, action):
        result = await self.run_tools(action)
        return replace(result, turn_options=TurnOptions(max_tokens=70 + self.total))

    def score(self, trajectory):
        return float(self.total)

    def close(self):
        closed.append(self)


class Saved(Sum):
    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


class Replayed(Sum):
    deterministic = True


ENVS = [Sum, Saved, Replayed]


class Engine(ScriptedEngine):
    """Keeps the sampling parameters; `cuts` maps a request's number to the tokens after which it is aborted."""

    def __init__(self, *args, cuts=None, on_cut=lambda: None, **kwargs):
        super().__init__(*args, **kwargs)
        self.params, self.cuts, self.on_cut = [], cuts or {}, on_cut

    async def generate(self, input_ids, sampling_params, **kwargs):
        self.params.append(sampling_params)
        return await super().generate(input_ids, sampling_params, **kwargs)

    async def _play(self, said, rid):
        kept = self.cuts.get(len(self.requests))
        if kept is None:
            return await super()._play(said, rid)
        self.on_cut()
        return replace(said, tokens=said.tokens[:kept], log_probs=said.log_probs[:kept], finish_reason="abort")


@dataclass
class Host:
    """Plays an episode through all its aborts: at the polls of the flag in `at`, or while `flag` is up."""

    env: type[Env]
    engine: ScriptedEngine
    renderer: object
    task: Task = TASK
    limits: Limits = field(default_factory=Limits)
    thinking: str = "keep"
    at: frozenset[int] = frozenset()
    polls: int = 0
    flag: bool = False
    parked: list[Parked] = field(default_factory=list)

    def aborted(self) -> bool:
        self.polls += 1
        self.flag = self.flag or self.polls in self.at
        return self.flag

    async def park(self, parked: Parked) -> None:
        # What is not alive crosses processes, its own Env closed behind it.
        self.parked.append(parked if parked.how == "alive" else pickle.loads(pickle.dumps(parked)))

    @property
    def episode(self):
        return {
            "engine": self.engine,
            "renderer": self.renderer,
            "options": EpisodeOptions(limits=self.limits, thinking=self.thinking),
            "hooks": EpisodeHooks(aborted=self.aborted, park=self.park),
        }

    def play(self):
        self.flag = False
        return run_episode(self.env(), self.task, session_id="s", **self.episode)

    def resume(self, parked=None, **episode):
        self.flag = False
        parked = parked or self.parked[-1]
        parked = replace(parked, episode=copy(parked.episode))  # which goes on, and is compared with later
        return resume_episode(parked, parked.env or self.env(), **{**self.episode, **episode})

    async def to_the_end(self):
        t = await self.play()
        while t.stop is StopReason.ABORTED:
            assert t.info.get("not_parked") is None, t.info
            t = await (self.resume() if self.parked else self.play())
        return t


def picture(t):
    """All of a trajectory but what time it took and in how many requests."""
    of_turns = [(turn.sampled_tokens, turn.finish_reason, turn.calls, turn.bad_call, turn.reward) for turn in t.turns]
    of_segments = [(s.tokens, s.prompt_length, s.log_probs, s.loss_mask, s.ledger) for s in t.segments]
    return of_segments, of_turns, t.messages, t.reward, t.stop, t.info, t.failure
