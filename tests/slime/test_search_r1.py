"""Search-R1's environment under slime: samples as pandas reads the published rows, aborted and sent again."""

from __future__ import annotations

import pytest

from agentrl_envs.search_r1.prompts import INVALID, prompt_of
from tests.envs.doubles.retriever import Served
from tests.slime.partial import Accounted, Slime

np = pytest.importorskip("numpy", reason="pandas reads lists as numpy's arrays")

SEARCH = "<think> I look it up. </think> <search> {} </search>"
TURNS = [
    *map(SEARCH.format, ("France", "Paris")),
    "Hm.",
    SEARCH.format("Lyon"),
    "<think> So. </think> <answer>Lyon</answer>",
]
LIMITS = {"turns": 4, "observation_tokens": 500}


def samples(host, count):
    """As slime makes them of `--input-key prompt --label-key reward_model`."""
    prompt = np.array([{"role": "user", "content": prompt_of("Which city is it?")}], dtype=object)
    label = {"style": "rule", "ground_truth": {"target": np.array(["Rome", "lyon"], dtype=object)}}
    made = {"prompt": prompt, "label": label, "group_index": 0, "metadata": {}}
    return [host.Sample(index=i, session_id=f"s-{i}", **made) for i in range(count)]


def asked(engine):
    return sum(map(len, engine.asked.values()))


async def play(serve, make_args, host, renderer, *, aborts):
    """All samples to their end; so many rollouts are aborted before, each in its first generation."""
    engine = Accounted(TURNS, renderer, seconds=0.05 if aborts else 0.0)
    async with Served() as retriever, serve(engine) as (_, url):
        config = {"env": "agentrl_envs.search_r1:SearchR1", "limits": LIMITS}
        config |= {"env_config": {"retriever": retriever.url, "topk": 1}}
        flags = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False}
        slime = Slime(host, make_args(url, args=flags, **config), engine)
        given = todo = samples(host, 4)
        for _ in range(aborts):
            begun = asked(engine)
            todo = await slime.rollout(todo, until=lambda: asked(engine) > begun) if todo else []  # noqa: B023
        assert not todo or not await slime.rollout(todo)
    return given


async def test_an_aborted_search_goes_on_where_it_stopped(serve, make_args, host, renderer):
    whole = await play(serve, make_args, host, renderer, aborts=0)
    parts = await play(serve, make_args, host, renderer, aborts=12)
    assert sum(sample.metadata["agentrl"].get("resumes", 0) for sample in parts) >= 4
    for sample, same in zip(parts, whole, strict=True):
        account = sample.metadata["agentrl"]
        assert "restarts" not in account, account.get("restart_reason")
        assert (sample.tokens, sample.loss_mask, sample.status) == (same.tokens, same.loss_mask, same.status)
        assert (account["stop"], account["info"]["searches"], sample.reward) == ("done", 3, 1.0)
    text = renderer.decode(whole[0].tokens)
    assert text.count("<information>Doc 1(Title: ") == 3
    assert text.count(INVALID) == 1
