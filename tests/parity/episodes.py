"""Twelve real episodes of fact_search, played by scripts, sampled with a tiny model's own log-probs.

Three groups: one with a turn cut off, one with a broken environment and a call that cannot be read, one in which all
fail alike. Observations are masked, lengths uneven.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from agentrl import EnvFactory, InfraError, Task, Trajectory, run_episode
from agentrl.engine import Generation, ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.models import tiny_model
from agentrl.testing import call, tiny_renderer
from agentrl.types import Limits
from agentrl_envs.fact_search import FactSearch, make_tasks

LIMITS = Limits(turns=4, max_tokens_per_turn=48, context=400)


class Breakable(FactSearch):
    """Its encyclopedia is gone for whoever looks for the end of the world."""

    async def step(self, action):
        if any(c.arguments.get("query") == "the end of the world" for c in action.calls):
            raise InfraError("the encyclopedia is gone")
        return await super().step(action)


class Judged:
    """A scripted engine whose log-probs are a model's."""

    def __init__(self, script, renderer, model) -> None:
        self._engine, self._model = ScriptedEngine(script, renderer), model

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        said: Generation = await self._engine.generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        tokens = [*input_ids, *said.tokens]
        return replace(said, log_probs=log_probs(self._model, tokens)[-len(said.tokens) :])

    async def context_length(self) -> int:
        return 1024


def log_probs(model, tokens: Sequence[int]) -> list[float]:
    """Of every token but the first."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(tokens)])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].float().tolist()


def moved(model, by: float, seed: int):
    """A copy whose weights have moved at random."""
    found, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return found


def first(kind: str) -> Task:
    return next(task for task in make_tasks("train", 40) if task.metadata["kind"] == kind)


def searches(task: Task) -> list:
    return [call("search", query=query) for query in task.metadata["searches"]]


async def play() -> list[list[Trajectory]]:
    """The groups, in order; what the environment failed is masked as in a run."""
    sampler, renderer = tiny_model(seed=0), tiny_renderer()
    far, near = first("two_hop"), first("country")
    scripts = [
        (far, [[*searches(far), f"Answer: {far.label}"], ["Answer: unknown"], [searches(far)[0], "Answer: nowhere"],
               [searches(far)[0], "Let me think about that for a while. " * 20]]),
        (near, [[*searches(near), f"Answer: {near.label}"], ["Answer: Atlantis"],
                [call("search", query="the end of the world")], ["<tool_call>{not a call</tool_call>", "Answer: no"]]),
        (near, [["Answer: A"], [*searches(near), "Answer: Bb"], ["Answer: Ccc, or so"], ["Answer: d"]]),
    ]  # fmt: skip
    groups = []
    async with EnvFactory(f"{__file__}:Breakable") as envs:
        for task, group in scripts:
            played = []
            for script in group:
                engine = Judged(script, renderer, sampler)
                options = EpisodeOptions(limits=LIMITS)
                t = await run_episode(envs.make(), task, engine=engine, renderer=renderer, options=options)
                if t.failure is not None:
                    assert t.failure.kind == "environment", t.failure.traceback
                    t.mask("env_failure")
                played.append(t)
            groups.append(played)
    return groups
