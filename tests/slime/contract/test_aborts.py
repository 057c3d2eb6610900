"""A host that has enough, or new weights, or no more use for an episode: no token is lost, none sampled twice."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import time
from typing import Any

import pytest
from aiohttp import web

from agentrl import adapt
from agentrl.trajectory.trajectory import Trajectory
from tests.slime.contract.aborts import (
    PARTIAL,
    PHASES,
    Held,
    come_back_and_go_on,
    first_is_held,
    rollout_function,
    until,
)


@pytest.mark.parametrize("phase", [pytest.param(p, marks=pytest.mark.path(f"partial rollout: in {p}")) for p in PHASES])
def test_aborted_episodes_come_back_and_go_on(host, start, rows, renderer, events, held, phase):
    come_back_and_go_on(host, start, rows, renderer, events, held, phase)


@pytest.mark.path("partial rollout: old tokens masked off")
def test_what_older_weights_sampled_can_be_masked(start, rows, held):
    run = start(first_is_held(rows(), "tool"), mask_offpolicy_in_partial_rollout=True, **PARTIAL)
    held(run)
    run.samples()
    (waiting,) = run.data_source.buffer
    old = [s.response_length for s in waiting]
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    for sample, count in zip(samples[:2], old, strict=True):
        assert sum(sample.loss_mask[:count]) == 0 < sum(sample.loss_mask[count:])
        ledger = sample.metadata["agentrl"]["ledger"]
        assert ledger["sampled"] == ledger["trained"] + sum(ledger["masked"].values())
        assert ledger["trained"] == sum(sample.loss_mask)
    assert data["loss_masks"] == [s.loss_mask for s in samples]


@pytest.mark.parametrize("mode", ["server", "request"])
def test_both_abort_modes(host, start, rows, renderer, events, held, monkeypatch, mode):
    """slime 0.4 asks a generate function how it is aborted. Why `adapt` declares "server": a cancelled call has written
    nothing, and slime drops its group."""
    host.need(hasattr(host.rollout, "_run_request_abortable_generate"), "abort modes")
    assert adapt.abort_mode == "server"
    monkeypatch.setattr(adapt, "abort_mode", mode)
    run = start(first_is_held(rows(), "tool"), engine=Held(renderer), **PARTIAL)
    held(run)
    samples, _, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    kept = [s.status for group in run.data_source.buffer for s in group]
    assert kept == ([host.Status.ABORTED] * 2 if mode == "server" else [])
    until(lambda: events.count("close") == (4 if mode == "server" else 6))  # the parked Envs stay open


EIGHT = {"sglang_server_concurrency": 8}
"""Samples at a time: four groups of two, so that those of the first rollout are the first to be played."""


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.path(f"weight update in a turn: {m}")) for m in ("sync", "fully-async")]
)
def test_an_engine_that_pauses_for_new_weights_is_waited_for(host, start, rows, renderer, mode):
    """slime posts /pause_generation, which aborts what is running, with its abort flag down."""
    slowly = rows()
    for row in slowly:
        row["prompt"] = f"slowly, {row['prompt']}"
    run = start(slowly, engine=Held(renderer), rollout_function_path=rollout_function(host, mode), **EIGHT)
    requests = importlib.import_module("requests")
    url = f"http://{run.args.sglang_router_ip}:{run.args.sglang_router_port}"

    def update() -> None:
        until(lambda: len(run.engine.requests) >= 8)
        requests.post(f"{url}/pause_generation", json={}, timeout=10).raise_for_status()
        time.sleep(0.2)  # meanwhile the episodes ask again, and have to wait
        requests.post(f"{url}/continue_generation", json={}, timeout=10).raise_for_status()

    updating = threading.Thread(target=update)
    updating.start()
    samples, data, _ = run.train()
    updating.join()
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert sum(data["raw_reward"]) == 6.0
    assert all(s.metadata["agentrl"]["turns"] == 2 for s in samples)
    assert [len(s.weight_versions) for s in samples] == [3] * 8, "a turn of two generations"


SEEN: list[Trajectory] = []


def noted(trajectory: Trajectory) -> float:
    """A reward function that keeps the trajectory."""
    SEEN.append(trajectory)
    return 1.0


@web.middleware
async def updated_in_each_answer(request: web.Request, handler: Any) -> web.StreamResponse:
    """As SGLang answers where new weights came in the middle, and --flush-cache-interval let the request go on."""
    response = await handler(request)
    if request.path != "/generate":
        return response
    answer = json.loads(response.body)
    length = len(answer["meta_info"]["output_token_logprobs"])
    spans = [
        {"version": "old", "start": 0, "end": length // 3},
        {"version": "new", "start": length // 3, "end": length},
    ]
    answer["meta_info"] |= {"weight_version": "new", "weight_versions": spans}
    return web.json_response(answer)


def test_versions_that_change_in_an_answer_are_spans_of_the_ledger(start, rows):
    SEEN.clear()
    run = start(rows(), agentrl={"reward": f"{__name__}:noted"}, middlewares=(updated_in_each_answer,))
    samples, data, _ = run.train()
    played = {trajectory.session_id: trajectory for trajectory in SEEN}
    for sample, mask in zip(samples, data["loss_masks"], strict=True):
        segment = played[sample.metadata["agentrl"]["session_id"]].segment
        sampled = [span for span in segment.spans if span.kind == "sampled"]
        assert [(span.turn, span.weight_version) for span in sampled] == [
            (turn, version) for turn in (0, 1) for version in ("old", "new")
        ]
        for old, new in zip(sampled[::2], sampled[1::2], strict=True):
            assert (old.stop, old.stop - old.start) == (new.start, (new.stop - old.start) // 3)
        assert sample.weight_versions == ["old", "new"] * 2
        ledger = sample.metadata["agentrl"]["ledger"]
        assert sum(mask) == ledger["trained"] == sum(span.stop - span.start for span in sampled)


@pytest.mark.path("fully-async: aborted groups come back")
def test_fully_async_requeues_what_was_aborted(host, start, rows, held):
    host.need(host.keeps_aborted, "need of it: its fully-async rollout plays aborted groups again from the start")
    run = start(
        rows(held_in="tool"),
        partial_rollout=True,
        **EIGHT,
        rollout_function_path=rollout_function(host, "fully-async"),
    )
    state, draw = host.rollout.GenerateState(run.args), run.data_source.get_samples
    # A group that slime draws while it is aborted it ships as it is, PENDING (sglang_rollout.py:310).
    run.data_source.get_samples = lambda count: [] if state.aborted else draw(count)
    held(run)

    def abort() -> None:
        until(lambda: len(run.engine.requests) >= 8)
        state.aborted = True
        until(lambda: len(run.data_source.buffer) == groups)
        state.aborted = False

    groups = run.args.sglang_server_concurrency // (run.args.n_samples_per_prompt if host.takes_lists else 1)
    aborting = threading.Thread(target=abort)
    aborting.start()
    samples, _ = run.samples()
    aborting.join()
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert [s.reward for s in samples] == [float("Peru" not in s.prompt) for s in samples]
    back = [s.metadata["agentrl"] for s in samples if s.group_index < groups]
    assert len(back) == 8, "they are played before new ones"
    assert not any(account.get("restarts") for account in back)


@pytest.mark.path("cancellation")
def test_a_cancelled_group_leaves_nothing_behind(host, start, rows, events):
    """As asyncio.run does with what a fully-async worker still has in hand when the run is over."""
    run = start(rows(slow=60))

    async def play() -> None:
        (group,) = run.data_source.get_samples(1)
        params = host.rollout.GenerateState(run.args).sampling_params
        playing = asyncio.create_task(host.rollout.generate_and_rm_group(run.args, group, params.copy()))
        while len(run.engine.requests) < 2:  # noqa: ASYNC110 - that happens in another thread
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        while events.count("close") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert {s.status for s in group} == {host.Status.PENDING}

    host.run(asyncio.wait_for(play(), 20))
