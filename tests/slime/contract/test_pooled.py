"""Lists of samples under fully-async rollout: why slime 0.3.1 cannot take them, and a worker that follows 0.4's rules.

The rules are those of PooledRolloutWorker (slime/rollout/fully_async_rollout.py and examples/fully_async in 0.4): an
aborted group is sent again at once; a group that was aborted three times without a new token is dropped, and so is one
with a list in it. The host's own `generate_and_rm_group` plays the groups.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from typing import Any

import pytest

from agentrl.slime.rollouts import flat_samples
from tests.slime.contract.agents import AGENT, LISTS
from tests.slime.contract.quiz import quiz as quiz  # a fixture

MOST_IDLE = 3


class DroppedError(Exception):
    """The worker has dropped the group."""


class Pooled:
    """Plays one group, as a slot of 0.4's pool does."""

    def __init__(self, run: Any) -> None:
        self.run, self.sent = run, 0
        self.state = run.host.rollout.GenerateState(run.args)

    async def play(self, group: list[Any]) -> list[Any]:
        idle = tokens = 0
        while idle < MOST_IDLE:
            self.sent += 1
            params = self.state.sampling_params.copy()
            group = await self.run.host.rollout.generate_and_rm_group(self.run.args, group, params)
            self.state.aborted = False
            samples = list(flat_samples(group))
            if not any(sample.status is self.run.host.Status.ABORTED for sample in samples):
                return group
            if any(isinstance(member, list) for member in group):
                raise DroppedError("a list cannot be sent again")
            now = sum(len(sample.tokens) for sample in samples)
            idle, tokens = (0, now) if now > tokens else (idle + 1, tokens)
        raise DroppedError("aborted without new tokens")


@pytest.fixture
def run(host, quiz, monkeypatch) -> Any:
    """A Run of fully-async rollout with one episode for each prompt, in a slime that takes lists there."""
    host.need(host.has("rollout_id") and host.fully_async, "rollout_id, or no fully-async rollout")
    base_types = importlib.import_module(f"{host.name}.rollout.base_types")
    monkeypatch.setattr(base_types, "iter_samples", flat_samples, raising=False)
    return quiz(**LISTS, rollout_function_path=host.fully_async_path, n_samples_per_prompt=1)


def play(run: Any) -> tuple[Pooled, list[Any]]:
    """The last prompt's episode: in the quiz it has four guesses, and so four segments."""
    pooled, group = Pooled(run), run.data_source.get_samples(4)[3]
    return pooled, run.host.run(asyncio.wait_for(pooled.play(group), 60))


def cutting(engine: Any, requests: set[int], kept: float, on_cut: Any = lambda: None) -> None:
    """The engine ends these requests early, as for new weights, with a share of their tokens."""
    whole = engine.generate

    async def generate(*args: Any, **kwargs: Any) -> Any:
        said = await whole(*args, **kwargs)
        if len(engine.requests) not in requests:
            return said
        on_cut()
        count = int(len(said.tokens) * kept)
        return replace(said, tokens=said.tokens[:count], log_probs=said.log_probs[:count], finish_reason="abort")

    engine.generate = generate


@pytest.mark.parametrize("kept", [0.0, 0.5])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_aborted_episode_is_sent_again_and_ends_as_a_list(run, at, kept):
    state = run.host.rollout.GenerateState(run.args)
    cutting(run.engine, {at}, kept, lambda: setattr(state, "aborted", True))
    pooled, (samples,) = play(run)
    assert (pooled.sent, len(samples), len(run.engine.requests)) == (2, 4, 5)
    assert {s.status for s in samples} == {run.host.Status.COMPLETED}
    assert len({s.rollout_id for s in samples}) == 1
    assert samples[-1].metadata["agentrl"]["resumes"] == 1
    assert all(sum(s.loss_mask) == s.metadata["agentrl"]["ledger"]["sampled"] > 0 for s in samples)
    _, (whole,) = play(run)
    assert [(s.tokens, s.loss_mask, s.rollout_log_probs) for s in samples] == [
        (s.tokens, s.loss_mask, s.rollout_log_probs) for s in whole
    ]


def test_weight_updates_alone_never_show_the_worker_an_aborted_sample(run):
    """Under them slime's flag stays down: adapt asks the engine again by itself, however often."""
    cutting(run.engine, {1, 2, 3, 4, 5}, 0.0)
    pooled, (samples,) = play(run)
    assert (pooled.sent, len(samples), len(run.engine.requests)) == (1, 4, 9)


def test_an_episode_that_is_aborted_again_and_again_gets_on(run):
    state = run.host.rollout.GenerateState(run.args)
    cutting(run.engine, {1, 2, 3, 4, 5}, 0.5, lambda: setattr(state, "aborted", True))
    pooled, (samples,) = play(run)
    assert (pooled.sent, len(samples)) == (6, 4)
    assert samples[-1].metadata["agentrl"]["resumes"] == 5


def test_an_aborted_agent_is_sent_again_and_ends_as_a_list(run, start, rows):
    """A segment for each of its conversations. None is masked for the time that it was one sample."""
    flags = {**LISTS, "rollout_function_path": run.args.rollout_function_path, "n_samples_per_prompt": 1}
    run = start(rows(), agentrl=AGENT, **flags)
    state = run.host.rollout.GenerateState(run.args)
    cutting(run.engine, {2}, 0.5, lambda: setattr(state, "aborted", True))
    pooled, (samples,) = play(run)
    assert (pooled.sent, len(samples), samples[-1].metadata["agentrl"]["resumes"]) == (2, 2, 1)
    assert all(sum(s.loss_mask) == s.metadata["agentrl"]["ledger"]["sampled"] > 0 for s in samples)


def test_fully_async_rollout_before_0_4_cannot_order_lists(run):
    """The reason for `fan_out_problems`: it calls int() on the method `list.index`."""
    run.host.need(not run.host.takes_lists, "need of it: its worker takes lists")
    with pytest.raises(TypeError, match="int"):
        run.train()


def test_partial_rollout_cannot_collect_lists(run):
    """The reason for `fan_out_problems`: it reads the response, or in 0.4 the status, of each member of a group."""
    rollout, args = run.host.rollout, run.args
    args.partial_rollout = True

    async def abort() -> None:
        async def ended() -> list[list[Any]]:
            return [[run.host.Sample()]]

        rollout.GenerateState(args).pendings = {asyncio.create_task(ended())}
        await rollout.abort(args, 0)

    with pytest.raises(AttributeError, match="'list' object has no attribute"):
        run.host.run(abort())
