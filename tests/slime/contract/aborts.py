"""Rollouts that slime aborts while the engine holds a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.slime.player import Player

PHASES = ["reset", "generate", "tool", "step", "score"]


class Held(Player):
    """As Player, but what it is asked "slowly" is under way until it is told to abort; then half of it is said."""

    def __init__(self, renderer: Any) -> None:
        super().__init__(renderer)
        self.aborted = asyncio.Event()

    async def generate(self, input_ids: Any, sampling_params: Any, *, session_id: str = "", rid: str = "") -> Any:
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        if self.aborted.is_set() or "slowly" not in self.decode(input_ids):
            return said
        await self.aborted.wait()
        half = len(said.tokens) // 2
        return replace(said, tokens=said.tokens[:half], log_probs=said.log_probs[:half], finish_reason="abort")

    async def abort(self, rid: str | None = None) -> None:
        self.aborted.set()
        await super().abort(rid)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def first_is_held(rows: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    """The first prompt is still in the phase when the host has enough of the others. The last one asks the same."""
    rows[0]["metadata"] = {"held_in": phase}
    if phase == "generate":
        rows[0]["prompt"] = rows[3]["prompt"] = "slowly, the capital of France?"
    return rows


PARTIAL = {"partial_rollout": True, "rollout_batch_size": 2, "over_sampling_batch_size": 3, "global_batch_size": 4}


def come_back_and_go_on(host, start, rows, renderer, events, held, phase):
    run = start(first_is_held(rows(), phase), engine=Held(renderer), **PARTIAL)
    held(run)
    samples, _, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = run.data_source.buffer
    ended = phase == "score" and not host.batch_builder  # 0.4 would drop the group: agentrl holds its episodes
    assert {s.status for s in waiting} == {host.Status.COMPLETED if ended else host.Status.ABORTED}
    assert all(isinstance(s.reward, float) and len(s.loss_mask) == s.response_length >= 1 for s in waiting)
    before = [list(s.tokens) for s in waiting]
    asked = len(run.engine.requests)
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert data["raw_reward"] == [1.0] * 4
    whole = samples[2]
    for sample, tokens in zip(samples[:2], before, strict=True):
        # The model is deterministic: an episode that nobody aborted says what is to come out.
        assert (sample.tokens, sample.loss_mask) == (whole.tokens, whole.loss_mask)
        assert sample.rollout_log_probs == pytest.approx(whole.rollout_log_probs)
        assert not sample.metadata["agentrl"].get("restarts")
        if phase != "reset":  # then there was nothing yet
            assert sample.tokens[: len(tokens)] == tokens, "what was sampled is kept"
    left = {"reset": 4, "generate": 4, "tool": 2, "step": 2, "score": 0}[phase]
    assert len(run.engine.requests) == asked + left + 4, "and nothing twice"
    assert events.count("close") == 8, "each Env once"


def rollout_function(host: Any, mode: str) -> str | None:
    if mode == "sync":
        return None
    host.need(host.fully_async, "fully-async rollout")
    return host.fully_async_path
