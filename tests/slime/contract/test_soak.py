"""A rollout of an Env that gets wrong what can be, its bugs included: the rollout completes, each sample has its cause.

AGENTRL_SOAK is the number of samples (`make soak`: 1,000)."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

from agentrl.engine import ScriptedEngine
from tests.hostile.env import LIMITS
from tests.hostile.faults import BUGS, ODDITIES, ONCE, WORLD, script
from tests.hostile.leaks import Before, no_tasks_left
from tests.hostile.records import Record, rows, wrong
from tests.slime.contract.conftest import starting

SAMPLES = int(os.environ.get("AGENTRL_SOAK", "120"))
GROUP = 2
FAULTS = [*WORLD, *ODDITIES, *BUGS, *ONCE]


def record(sample) -> Record:
    told = sample.metadata["agentrl"]
    failure = told.get("failure")
    ledger = told["ledger"]
    trained = sum(sample.loss_mask) if sample.loss_mask is not None else ledger["trained"]
    assert bool(failure) == bool(sample.remove_sample)
    return Record(
        told["stop"],
        failure and (failure["kind"], failure["boundary"], failure["error"]),
        sample.reward,
        told.get("info", {}),
        trained,
        ledger["masked"],
        told["bad_calls"],
        sample.response,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")
@pytest.mark.timeout(240 + SAMPLES)
@pytest.mark.path("a hostile Env: every fault beside every other")
@pytest.mark.parametrize("path", ["", "fully-async"], ids=["sync", "fully-async"])
def test_a_rollout_of_a_hostile_env(host, checkpoint, renderer, tmp_path, monkeypatch, path):
    if path:
        host.need(host.fully_async, "fully-async rollout")
    prompts = max(SAMPLES // GROUP, len(FAULTS))
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = Before(folder)
    with starting(host, checkpoint, renderer, tmp_path) as start:
        run = start(
            rows(FAULTS, prompts),
            engine=ScriptedEngine(lambda ids: script(renderer.decode(ids)), renderer, context_length=4096),
            agentrl={"env": "tests.hostile.env:Hostile", "limits": LIMITS},
            rollout_batch_size=prompts,
            over_sampling_batch_size=prompts,
            n_samples_per_prompt=GROUP,
            global_batch_size=GROUP * prompts,
            rollout_max_response_len=800,
            rollout_function_path=host.fully_async_path if path else None,
            sglang_server_concurrency=48 if path else 96,
            custom_reward_post_process_path="agentrl.slime.post_process_rewards",
        )
        samples, data, _ = run.train()
        if not path:  # the worker of the other goes on to the next prompts
            host.run(no_tasks_left("LoopResources._keep", "resource _sharing"))
        assert len(samples) == prompts * GROUP
        assert path or {s.metadata["fault"] for s in samples} == set(FAULTS)  # fully-async leaves out who is late
        said = [one for s in samples for one in wrong(s.metadata["fault"], record(s), again=False, in_full=False)]
        assert not said, "\n".join(said)
        for sample, reward, mask in zip(samples, data["rewards"], data["loss_masks"], strict=True):
            assert reward == sum(mask) == 0 or not sample.remove_sample
    before.nothing_left()
