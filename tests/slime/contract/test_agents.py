"""An agent that plays by itself, in a host's own rollouts: as a list of samples, and as one where it takes no lists."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrl.env.factory import load_env
from tests.slime.contract.aborts import PARTIAL, Held, until
from tests.slime.contract.agents import AGENT, LISTS

ROOT = Path(__file__).parents[3]
REWARDS = [1.0] * 4 + [0.0] * 2 + [1.0] * 2


@pytest.fixture
def ended() -> list[str]:
    module: ModuleType = sys.modules[load_env(AGENT["env"]).__module__]
    module.ENDED.clear()
    return module.ENDED


def generated(engine: Any, samples: list[Any]) -> int:
    """How many tokens the model said to these prompts, as the engine planned them."""
    return sum(len(engine._turn(ids).tokens) for ids in engine.requests)


def ledger(sample: Any) -> dict[str, Any]:
    return sample.metadata["agentrl"]["ledger"]


@pytest.mark.path("an agent: a list of samples")
def test_each_conversation_is_a_sample(host, start, rows, ended):
    host.need(host.has("rollout_id"), "rollout_id")
    run = start(rows(), agentrl=AGENT, **LISTS)
    samples, data, ranks = run.train()
    assert len(samples) == 16
    assert len({s.rollout_id for s in samples}) == 8
    assert data["raw_reward"] == [reward for reward in REWARDS for _ in range(2)]
    asked = {tuple(ids) for ids in run.engine.requests}
    for side, main in zip(samples[::2], samples[1::2], strict=True):
        assert (side.rollout_id, side.reward) == (main.rollout_id, main.reward)
        assert sum(side.tokens[: len(ids)] == list(ids) for ids in asked) == 1
        assert sum(main.tokens[: len(ids)] == list(ids) for ids in asked) == 2
        assert (main.metadata["agentrl"]["segment"], main.metadata["agentrl"]["segments"]) == (1, 2)
    trained = sum(map(sum, data["loss_masks"]))
    assert trained == sum(ledger(s)["sampled"] for s in samples) == generated(run.engine, samples)
    assert sum(len(rank["tokens"]) for rank in ranks) == 16
    assert ended == ["done"] * 8


ONE = {
    "grpo's own baseline": {},
    "group rewards": {**LISTS, "group_rm": True, "custom_rm_path": "agentrl.slime.reward"},
    "its own filter": {
        **LISTS,
        "dynamic_sampling_filter_path": "{}.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
    },
    "partial rollout": {**LISTS, "partial_rollout": True},
    "fully-async": {**LISTS},
}


@pytest.mark.parametrize("flags", [pytest.param(n, marks=pytest.mark.path(f"an agent: one sample, {n}")) for n in ONE])
def test_where_lists_are_not_taken_the_main_line_is_the_sample(host, start, rows, ended, flags):
    given = {name: v.format(host.name) if isinstance(v, str) else v for name, v in ONE[flags].items()}
    if flags == "fully-async":
        given["rollout_function_path"] = host.fully_async_path
        host.need(host.fully_async, "fully-async rollout")
        host.need(not host.takes_lists, "need of it: its fully-async rollout takes lists")
    if flags == "its own filter":
        rewarding = [{**row, "metadata": {}} for row in rows()]
        given |= {"over_sampling_batch_size": 4, "rollout_batch_size": 4}
        run = start(rewarding, agentrl={**AGENT, "reward": "tests.slime.contract.test_agents:by_member"}, **given)
    else:
        run = start(rows(), agentrl=AGENT, **given)
    samples, data, _ = run.train()
    assert len(samples) == 8
    for sample in samples:
        counted = ledger(sample)
        assert sample.metadata["agentrl"]["segments_left_out"] == 1
        assert counted["sampled"] == counted["trained"] + sum(counted["masked"].values())
        assert counted["trained"] == sum(sample.loss_mask) > 0
        assert counted["masked"]["host"] > 0
    if flags not in ("fully-async", "its own filter"):
        assert data["raw_reward"] == REWARDS
        assert sum(ledger(s)["sampled"] for s in samples) == generated(run.engine, samples)


_members = iter(range(1_000_000))


def by_member(trajectory: Any) -> float:
    """A reward that differs within each group."""
    return float(next(_members) % 2)


@pytest.mark.path("an agent: partial rollout")
def test_an_agent_goes_on_in_the_same_turn(host, start, rows, renderer, ended):
    asked = rows()
    asked[0]["prompt"] = asked[3]["prompt"] = "slowly, the capital of France?"
    run = start(asked, engine=Held(renderer), agentrl=AGENT, **PARTIAL)
    samples, _, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = run.data_source.buffer
    assert {s.status for s in waiting} == {host.Status.ABORTED}
    assert [s.metadata["agentrl"]["resume"]["how"] for s in waiting] == ["alive"] * 2
    before, requests = [list(s.tokens) for s in waiting], len(run.engine.requests)
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4
    whole = samples[2]
    for sample in samples[:2]:
        assert (sample.tokens, sample.loss_mask) == (whole.tokens, whole.loss_mask)
        assert sample.rollout_log_probs == pytest.approx(whole.rollout_log_probs)
        assert sample.metadata["agentrl"]["resumes"] == 1
        assert "restarts" not in sample.metadata["agentrl"]
    assert before
    assert ended == ["done"] * 8
    assert len(run.engine.requests) == requests + 2 * (1 + 2) + 2 * 3, "the rest of a turn each, and nothing twice"


@pytest.mark.path("an agent: partial rollout, beyond parking.keep_s")
def test_an_agent_that_waited_too_long_begins_anew(host, start, rows, renderer, ended):
    asked = rows()
    asked[0]["prompt"] = asked[3]["prompt"] = "slowly, the capital of France?"
    run = start(asked, engine=Held(renderer), agentrl={**AGENT, "parking": {"keep_s": 0.01}}, **PARTIAL)
    run.train()
    until(lambda: sum(how.startswith("503") for how in ended) == 2)  # their clients were told to come later
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    assert data["raw_reward"] == [1.0] * 4
    for sample in samples[:2]:
        assert sample.metadata["agentrl"]["restarts"] == 1
        assert "its time was up" in sample.metadata["agentrl"]["restart_reason"]
        assert sum(sample.loss_mask) == ledger(sample)["trained"] > 0


@pytest.mark.path("an agent: evaluation, and a broken world")
def test_evaluation_and_a_broken_world(host, start, rows, ended):
    asked = rows()
    asked[1]["metadata"] = {"break": True}
    run = start(asked, agentrl=AGENT, **LISTS)
    assert run.evaluate()["rewards"] == [1.0] * 2 + [0.0] * 4 + [1.0] * 2
    samples, _, _ = run.train()
    failed = [s for s in samples if s.status is host.Status.FAILED]
    assert {s.metadata["agentrl"]["failure"]["boundary"] for s in failed} == {"run"}
    assert [sum(s.loss_mask) for s in failed] == [0, 0]


@pytest.mark.path("an agent: an openai-agents program plays the demo's task")
def test_an_openai_agents_program(demo):
    pytest.importorskip("agents", reason="examples/agents_sdk needs openai-agents")
    run, turns = demo(f"{ROOT / 'examples' / 'agents_sdk' / 'env.py'}:Assistant")
    samples, data, _ = run.train()
    assert data["raw_reward"] == [1.0] * 8
    assert [s.metadata["agentrl"]["turns"] for s in samples] == turns
    asked = {tuple(ids) for ids in run.engine.requests}
    for sample, count in zip(samples, turns, strict=True):
        assert sum(sample.tokens[: len(ids)] == list(ids) for ids in asked) == count
        assert sum(sample.loss_mask) == ledger(sample)["sampled"] > 0
    assert run.evaluate()["rewards"] == [1.0] * 8
