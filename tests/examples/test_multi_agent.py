"""slime's multi_agent example on agentrl: each role's own reward, here and as slime's Samples."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from dataclasses import field, make_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("openai", reason="examples/multi_agent needs openai")
pytest.importorskip("mpmath", reason="examples/multi_agent needs mpmath")

from agentrl import EnvFactory, Task, adapt
from agentrl.engine import ScriptedEngine
from agentrl.engine.sglang.server import running_server
from agentrl.slime import post_process_rewards
from agentrl.testing import rollout, tiny_renderer
from agentrl.train.credit import assign_advantages
from tests.slime.conftest import Sample as PlainSample
from tests.slime.conftest import slime_args
from tests.slime.hook_samples import args as slime_flags

ENV = f"{Path(__file__).parents[2] / 'examples' / 'multi_agent' / 'multi_agent.py'}:MultiAgent"
TASK = Task(prompt="What is 6 times 7?", label="42")
RIGHT, WRONG, EMPTY = (f"<think>So.</think>{answer}" for answer in (r"\boxed{42}", r"\boxed{41}", ""))


def scenario(solvers, rewriters, judgement):
    """`judgement`: words, or the answer of the solution to be selected: rewriters ask at once, in any order."""
    return solvers, rewriters, judgement


def judged(prompt, judgement):
    if isinstance(judgement, int):
        at = {answer: prompt.rindex(f"boxed{{{answer}}}") for answer in (41, 42)}
        judgement = f"Judgment: {sorted(at, key=at.get).index(judgement) + 1}"
    return f"<think>Hm.</think>{judgement}"


SCENARIOS = {
    "the right one is selected": scenario([RIGHT, WRONG], [WRONG, RIGHT], 42),
    "a wrong one is selected": scenario([RIGHT, WRONG], [WRONG, RIGHT], 41),
    "nothing is selected": scenario([RIGHT, WRONG], [WRONG, RIGHT], "I do not know."),
    "there is no such solution": scenario([RIGHT, RIGHT], [RIGHT, RIGHT], "Judgment: 7"),
    "a rewriter wrote nothing": scenario([WRONG, WRONG], [EMPTY, RIGHT], "Judgment: 1"),
    "no solver wrote anything": scenario([EMPTY, EMPTY], [RIGHT, RIGHT], "Judgment: 1"),
    "no rewriter wrote anything": scenario([RIGHT, WRONG], [EMPTY, EMPTY], "Judgment: 1"),
}
EXPECTED = {
    "the right one is selected": {"solver": [1.2, 0], "rewriter": [0, 1.2], "": [1.2]},
    "a wrong one is selected": {"solver": [0.8, 0], "rewriter": [0, 0.8], "": [0]},
    "nothing is selected": {"solver": [0.8, 0], "rewriter": [0, 0.8], "": [0]},
    "there is no such solution": {"solver": [0.8, 0.8], "rewriter": [0.8, 0.8], "": [0]},
    "a rewriter wrote nothing": {"solver": [0, 0], "rewriter": [0, 1.2], "": [1.2]},
    "no solver wrote anything": {"solver": [0, 0]},
    "no rewriter wrote anything": {"solver": [0.8, 0], "rewriter": [0, 0]},
}
"""What slime's own code gives (agent_system.py of 0.3.1); the selector's under ""."""


def playing(solvers, rewriters, judgement):
    """A model's replies by what its prompt asks, each once."""
    left = {"Candidate Solutions": [judgement], "Solution Rewriting": [*rewriters], "": [*solvers]}

    def reply(prompt: str) -> str:
        said = next(replies for mark, replies in left.items() if mark in prompt).pop(0)
        return judged(prompt, said) if "Candidate Solutions" in prompt else said

    return reply


async def played(name):
    renderer, reply = tiny_renderer(), playing(*SCENARIOS[name])
    async with EnvFactory(ENV, {"parallel": 2}) as envs:
        return await rollout(envs.make(), TASK, lambda ids: reply(renderer.decode(ids)), renderer=renderer)


def by_role(earned):
    found = {}
    for name, reward in earned:
        found.setdefault(name.partition("/")[0], []).append(reward)
    return {role: Counter(round(reward, 9) for reward in rewards) for role, rewards in found.items()}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_role_is_paid_as_in_slime(name):
    trajectory = await played(name)
    assert trajectory.failure is None, trajectory.failure
    assert by_role(trajectory.earned.items()) == {role: Counter(own) for role, own in EXPECTED[name].items()}
    assert sum(s.ledger.trained for s in trajectory.segments) == sum(s.ledger.sampled for s in trajectory.segments)


async def test_a_role_is_compared_with_the_same_role_only():
    group = [await played("the right one is selected"), await played("no solver wrote anything")]
    [[one, other]], [differs] = assign_advantages([group], "dr_grpo", "episode")
    solvers, rewriters, selector = one[:2], one[2:4], one[4]
    assert differs
    assert sorted(solvers) == pytest.approx([-0.3, 0.9]), "four solvers, of which one is right"
    assert sorted(rewriters) == pytest.approx([-0.6, 0.6]), "the other episode has none"
    assert selector == 0.0, "nor a selector"
    assert other == pytest.approx([-0.3, -0.3])


async def test_under_slime_each_branch_is_a_sample_with_its_own_reward():
    kind = make_dataclass("Sample", [("rollout_id", int, None)], bases=(PlainSample,))
    renderer, samples = tiny_renderer(), []
    for index, name in enumerate(("the right one is selected", "a rewriter wrote nothing")):
        reply = playing(*SCENARIOS[name])
        engine = ScriptedEngine(lambda ids, reply=reply: reply(renderer.decode(ids)), renderer)
        async with running_server(engine, decode=renderer.decode) as url:
            given = kind(prompt=TASK.prompt, label=TASK.label, index=index, group_index=0)
            args = slime_args(url, env=ENV, env_config={"parallel": 2})
            played = await adapt(args, given, {"max_new_tokens": 64, "temperature": 1.0})
        assert by_role((s.metadata["agentrl"]["branch"], s.reward) for s in played) == {
            role: Counter(own) for role, own in EXPECTED[name].items()
        }
        assert {s.rollout_id for s in played} == {index}
        samples += played
    raw, advantages = post_process_rewards(
        slime_flags(advantage_estimator="grpo", grpo_std_normalization=False), samples
    )
    assert raw == [s.reward for s in samples]
    solvers = [a for s, a in zip(samples, advantages, strict=True) if s.metadata["agentrl"]["branch"][:3] == "sol"]
    assert sorted(solvers) == pytest.approx([-0.3, -0.3, -0.3, 0.9]), "the mean of the four solvers is 0.3"


@pytest.mark.skipif("SLIME_SRC" not in os.environ, reason="SLIME_SRC is not set (docs/slime.md says how)")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_slimes_own_code_gives_these_rewards(name, monkeypatch):
    reply, system = playing(*SCENARIOS[name]), slimes_system(monkeypatch)

    async def post(url, payload):
        about = {"output_token_logprobs": [[-1.0, 7]], "finish_reason": {"type": "stop"}}
        return {"text": reply(payload["input_ids"]), "meta_info": about}

    monkeypatch.setattr(system, "post", post)
    args = SimpleNamespace(
        sampling_params={"max_new_tokens": 64},
        tokenizer=lambda text, **_: {"input_ids": text},
        rollout_max_context_len=1 << 16,
        sglang_router_ip="",
        sglang_router_port=0,
        num_parallel=2,
        correct_reward_weight=1.2,
        incorrect_reward_weight=0.8,
    )
    samples = await system.run_agent_system(args, slimes_sample()(prompt=TASK.prompt, index=3))
    roles = {"Candidate Solutions": "", "Solution Rewriting": "rewriter"}
    named = [(next((role for mark, role in roles.items() if mark in s.prompt), "solver"), s.reward) for s in samples]
    assert by_role(named) == {role: Counter(own) for role, own in EXPECTED[name].items()}


def slimes_sample():
    """The part of slime's Sample that its example uses."""
    kind = make_dataclass(
        "Sample",
        [
            ("prompt", str),
            ("index", int),
            ("tokens", str, ""),
            ("rollout_log_probs", list, field(default_factory=list)),
        ],
    )
    kind.response_length = 0
    kind.append_response_tokens = lambda self, args, **given: None
    kind.Status = Enum("Status", ["TRUNCATED", "COMPLETED"])
    return kind


def slimes_system(monkeypatch):
    """slime's agent_system.py, with stand-ins for what it imports of slime."""

    async def rewards_of(args, samples):
        return [float("{42}" in sample.response) for sample in samples]

    stand_ins = {
        "slime": {},
        "slime.rollout": {},
        "slime.rollout.rm_hub": {"batched_async_rm": rewards_of},
        "slime.utils": {},
        "slime.utils.http_utils": {"post": None},
        "slime.utils.types": {"Sample": slimes_sample()},
        "slimes_multi_agent": {"__path__": [f"{os.environ['SLIME_SRC']}/examples/multi_agent"]},
    }
    for module, values in stand_ins.items():
        made = ModuleType(module)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.delitem(sys.modules, "slimes_multi_agent.agent_system", raising=False)
    return importlib.import_module("slimes_multi_agent.agent_system")
