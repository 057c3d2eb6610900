"""Whatever breaks, the rollout completes, the baseline holds what the policy did and no more, and the cause is named.

All faults happen side by side in one rollout, each to a prompt of its own and there to half of the samples.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from agentrl.engine import sglang
from agentrl.slime import logs
from tests.slime.conftest import ENV_FILE
from tests.slime.contract.conftest import WORKERS, starting

GROUP = 4


@dataclass(frozen=True)
class Fault:
    """What is done, and what the samples it is done to must say. No `kind`: the model or nobody notices."""

    env: dict[str, Any] = field(default_factory=dict)
    engine: str = ""
    kind: str = ""
    boundary: str = ""
    error: str = ""
    struck: int = GROUP // 2


def hook(where: str, how: str) -> dict[str, Any]:
    return {"break": where, "how": how}


FAULTS = {
    "share down": Fault({"env": f"{ENV_FILE}:Shareless"}, "", "environment", "share", "InfraError: no table", GROUP),
    "reset down": Fault(hook("reset", "world"), "", "environment", "reset", "InfraError: reset broke"),
    "reset bug": Fault(hook("reset", "bug"), "", "bug", "reset", "KeyError: 'reset broke'"),
    "reset hangs": Fault(hook("reset", "hang"), "", "environment", "reset", "TimeoutError: Lookup.reset took longer"),
    "reset cancelled": Fault(hook("reset", "cancel"), "", "environment", "reset", "CancelledError"),
    "step down": Fault(hook("step", "world"), "", "environment", "step", "InfraError: step broke"),
    "step bug": Fault(hook("step", "bug"), "", "bug", "step", "KeyError: 'step broke'"),
    "step hangs": Fault(hook("step", "hang"), "", "environment", "step", "TimeoutError: Lookup.step took longer"),
    "tool down": Fault(hook("tool", "world"), "", "environment", "step", "InfraError: tool broke"),
    "tool cancelled": Fault(hook("tool", "cancel"), "", "environment", "step", "CancelledError"),
    "tool bug": Fault(hook("tool", "bug")),
    "tool hangs": Fault(hook("tool", "hang")),
    "score down": Fault(hook("score", "world"), "", "environment", "score", "InfraError: score broke"),
    "score bug": Fault(hook("score", "bug"), "", "bug", "score", "KeyError: 'score broke'"),
    "score hangs": Fault(hook("score", "hang"), "", "environment", "score", "TimeoutError: Lookup.score took longer"),
    "close bug": Fault(hook("close", "bug")),
    "close hangs": Fault(hook("close", "hang")),
    "engine 500": Fault({}, "500", "engine", "engine", "HTTP 500"),
    "engine 500 once": Fault({}, "500 once"),
    "engine refuses": Fault({}, "400", "engine", "engine", "HTTP 400"),
    "engine gone": Fault({}, "gone", "engine", "engine", "ServerDisconnectedError"),
    "engine aborts": Fault({}, "abort", "engine", "engine", "and sampled no token"),
    "engine hangs": Fault({}, "hang", "engine", "engine", "no answer within 3 s"),
}
if WORKERS:
    del FAULTS["engine hangs"]  # the client's timeout is changed in this process
ABORTED = {"text": "", "meta_info": {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}}
"""What SGLang answers to a request that it drops, as for new weights."""
LIMITS = {"reset_s": 2, "step_s": 3, "tool_s": 1, "score_s": 2, "close_s": 2, "turns": 3}


def rows() -> list[dict[str, Any]]:
    """A prompt for each fault. Rewards are the samples' numbers, so that each group has a spread of its own."""
    return [
        {
            "prompt": f"[{name}] the capital of France?",
            "label": "Paris",
            "metadata": {"fault": name, "odd": True, "reward": "index", **fault.env},
        }
        for name, fault in FAULTS.items()
    ]


def breaking(decode: Any) -> Any:
    """A middleware that fails the first two sessions of a prompt as its fault says, and leaves the others alone."""
    sessions: dict[str, list[str]] = {}
    failed: set[str] = set()

    @web.middleware
    async def fail(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path == "/generate":
            text = decode((await request.json())["input_ids"])
            name = next(name for name in FAULTS if f"[{name}]" in text)
            session = request.headers["X-SMG-Routing-Key"]
            seen = sessions.setdefault(name, [])
            if session not in seen:
                seen.append(session)
            how = "" if FAULTS[name].engine == "500 once" and session in failed else FAULTS[name].engine
            if session in seen[: GROUP // 2]:
                failed.add(session)
                if (answer := await _broken_answer(how, request)) is not None:
                    return answer
        return await handler(request)

    return fail


async def _broken_answer(how: str, request: web.Request) -> web.StreamResponse | None:
    match how:
        case "400":
            raise web.HTTPBadRequest(text="no")
        case "500":
            raise web.HTTPInternalServerError(text="CUDA error")
        case "500 once":
            raise web.HTTPInternalServerError(text="a hiccup")
        case "abort":
            return web.json_response(ABORTED)
        case "gone":
            request.transport.abort()
        case "hang":
            await asyncio.sleep(30)
    return None


@dataclass(frozen=True)
class Outcome:
    groups: dict[str, list[Any]]
    data: dict[str, list[dict[str, Any]]]
    metrics: dict[str, Any]


@pytest.fixture(scope="module", params=["sync", "fully-async"])
def outcome(request, host, checkpoint, renderer, tmp_path_factory) -> Iterator[Outcome]:
    """One rollout of all faults: the samples of each, and what becomes of them in training."""
    path = None
    if request.param == "fully-async":
        host.need(host.fully_async, "fully-async rollout")
        path = host.fully_async_path
    count, folder = len(FAULTS), tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch, starting(host, checkpoint, renderer, folder) as start:
        patch.setattr(sglang, "SGLangEngine", partial(sglang.SGLangEngine, timeout=3.0))
        run = start(
            rows(),
            agentrl={"limits": LIMITS, "engine_retry_s": 1.0},
            middlewares=(breaking(renderer.decode),),
            rollout_function_path=path,
            rollout_batch_size=count,
            over_sampling_batch_size=count,
            n_samples_per_prompt=GROUP,
            global_batch_size=GROUP * count,
            sglang_server_concurrency=GROUP * count if path is None else count,
            custom_reward_post_process_path="agentrl.slime.post_process_rewards",
        )
        groups: dict[str, list[Any]] = {}
        data: dict[str, list[dict[str, Any]]] = {}
        for rollout_id in range(5):  # fully-async hands over what is ready first: slow prompts come in the next rollout
            samples, converted, _ = run.train(rollout_id)
            for i, sample in enumerate(samples):
                name = sample.metadata["fault"]
                if sample.group_index < count:
                    groups.setdefault(name, []).append(sample)
                    data.setdefault(name, []).append({key: converted[key][i] for key in KEYS})
            if len(groups) == count:
                break
        assert path or rollout_id == 0
        yield Outcome(groups, data, logs.rollout_metrics(run.args, [s for group in groups.values() for s in group]))


KEYS = ("rewards", "raw_reward", "loss_masks", "response_lengths", "rollout_log_probs")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.path(f"fault: {n}")) for n in FAULTS])
def test_fault(host, outcome, name):
    fault, group, data = FAULTS[name], outcome.groups[name], outcome.data[name]
    assert len(group) == GROUP
    failures = [s.metadata["agentrl"].get("failure") for s in group]
    struck = [f for f in failures if f]
    assert len(struck) == (fault.struck if fault.kind else 0)
    for failure in struck:
        assert (failure["kind"], failure["boundary"]) == (fault.kind, fault.boundary)
        assert fault.error in failure["error"]
    valid = [d["raw_reward"] for d, failure in zip(data, failures, strict=True) if not failure]
    mean = statistics.mean(valid) if valid else 0.0
    scale = statistics.stdev(valid) + 1e-6 if valid else 1.0
    for sample, one, failure in zip(group, data, failures, strict=True):
        assert one["response_lengths"] == len(one["loss_masks"]) == len(one["rollout_log_probs"]) >= 1
        if failure:
            assert (sample.status, sample.remove_sample) == (host.Status.FAILED, True)
            assert (one["rewards"], sum(one["loss_masks"])) == (0.0, 0), "no advantage, and nothing trained"
        else:
            assert (sample.status, sample.remove_sample) == (host.Status.COMPLETED, False)
            assert one["rewards"] == pytest.approx((one["raw_reward"] - mean) / scale), "measured against the valid"
            assert sum(one["loss_masks"]) == sample.metadata["agentrl"]["ledger"]["sampled"] > 0
    if name == "tool bug":
        assert [s.metadata["agentrl"].get("info", {}).get("tool_errors") for s in group].count(
            {"capital:KeyError": 3}
        ) == GROUP // 2, "the model reads it, asks again, and the count says that it was a bug"
    if name == "tool hangs":
        assert sum("Error: capital took longer than 1 s" in s.response for s in group) == GROUP // 2
    if name == "close bug":
        assert sum("close broke" in str(s.metadata["agentrl"].get("info")) for s in group) == GROUP // 2


@pytest.mark.path("faults: metrics name the causes")
def test_metrics_name_the_causes(outcome):
    expected = Counter[str]()
    for fault in FAULTS.values():
        if fault.kind:
            expected[f"{fault.kind}/{fault.boundary}"] += fault.struck
    assert outcome.metrics.failures == expected
    assert outcome.metrics.failed_episodes == expected.total()
    assert outcome.metrics.tool_errors == {"capital:KeyError": 3 * (GROUP // 2)}
    assert math.isfinite(outcome.metrics.reward_mean)
