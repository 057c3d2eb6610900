"""Budgets of tokens: observations are cut with a mark, episodes end at a turn's end, no sampled token is ever cut."""

from __future__ import annotations

import re

import pytest

from agentrl import ConfigError, Env, Limits, StopReason, Task, Trajectory, run_episode, tool
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.testing import call

TASK = Task(prompt="Which is the longest page?", label="none")
SCRIPT = [call("page", words=400), call("page", words=3), "none"]


class Pages(Env):
    @tool
    async def page(self, words: int) -> str:
        """Some words."""
        return " ".join(f"w{i}" for i in range(words))

    def score(self, trajectory):
        return float(trajectory.answer == "none")


async def play(renderer, turns=SCRIPT, **limits) -> Trajectory:
    engine = ScriptedEngine(turns, renderer)
    t = await run_episode(
        Pages(), TASK, engine=engine, renderer=renderer, options=EpisodeOptions(limits=Limits(**limits))
    )
    assert t.failure is None, t.failure
    t.verify()
    assert t.ledger.trained == t.ledger.sampled, "a budget masks nothing"
    assert t.prefix_breaks == 0
    for request, turn in zip(engine.requests, t.turns, strict=True):
        assert request == t.tokens[: turn.prompt_tokens]
    return t


def observed(t: Trajectory) -> list[int]:
    """Tokens of each observation."""
    lengths: dict[int, int] = {}
    for span in t.segment.spans:
        if span.kind == "observation":
            lengths[span.turn] = lengths.get(span.turn, 0) + span.stop - span.start
    return list(lengths.values())


async def test_what_fits_is_left_alone(renderer):
    free = await play(renderer)
    t = await play(renderer, observation_tokens=max(observed(free)))
    assert t.tokens == free.tokens
    assert "observation_tokens_cut" not in t.info


@pytest.mark.parametrize("budget", [40, 60, 200])
async def test_a_longer_observation_is_cut_marked_and_counted(renderer, budget):
    free = await play(renderer)
    long, short = observed(free)
    t = await play(renderer, observation_tokens=budget)
    assert observed(t)[0] <= budget < long
    if budget >= short:
        assert observed(t)[1] == short
    marks = [int(n) for n in re.findall(r"\[(\d+) tokens cut\]", renderer.decode(t.tokens))]
    assert sum(marks) == t.info["observation_tokens_cut"] >= long - budget
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    assert [action.tokens for action in t.actions] == [action.tokens for action in free.actions]


async def test_of_several_results_the_longest_is_cut(renderer):
    two = {"role": "assistant", "content": "", "tool_calls": []}
    for words in (400, 3):
        two["tool_calls"] += call("page", words=words)["tool_calls"]
    t = await play(renderer, [two, "none"], observation_tokens=100)
    text = renderer.decode(t.tokens)
    assert "w0 w1 w2\n" in text
    assert text.count("tokens cut]") == 1
    assert observed(t)[0] <= 100


async def test_a_budget_smaller_than_the_scaffolding_leaves_that_whole(renderer):
    t = await play(renderer, observation_tokens=1)
    assert (t.stop, len(t.turns), t.reward) == (StopReason.DONE, 3, 1.0)
    assert "w0" not in renderer.decode(t.response)
    assert renderer.decode(t.response).count("tokens cut]") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["tokens", "context"])
async def test_every_budget_ends_within_bounds_and_at_a_boundary(renderer, limit):
    whole = await play(renderer, observation_tokens=40)
    base = whole.prompt_length if limit == "context" else 0
    ends = {span.stop for span in whole.segment.spans if span.kind == "sampled"}
    stops = set()
    for length in range(1, whole.segment.response_length + 2):
        t = await play(renderer, observation_tokens=40, **{limit: base + length})
        stops.add(t.stop)
        assert t.segment.response_length <= length
        assert t.tokens == whole.tokens[: len(t.tokens)], "an episode that is cut is the beginning of the whole one"
        assert t.segment.spans[-1].kind == "sampled", "no observation that no turn would read"
        if t.stop is not StopReason.DONE:
            assert t.truncated
            # either the turn was cut by the bound itself, or it is complete
            assert t.segment.response_length == length or t.segment.response_length in ends
    assert stops == {StopReason.DONE, StopReason.MAX_TOKENS if limit == "tokens" else StopReason.CONTEXT_FULL}


async def test_a_cut_observation_may_save_an_episode_that_would_not_fit(renderer):
    assert (await play(renderer, context=500)).stop is StopReason.CONTEXT_FULL
    assert (await play(renderer, context=500, observation_tokens=50)).stop is StopReason.DONE


@pytest.mark.parametrize("value", [0, -5])
def test_a_budget_is_positive(value):
    with pytest.raises(ConfigError, match=rf"limits\.observation_tokens must be positive, not {value}"):
        Limits(observation_tokens=value)


def test_a_whole_number_may_be_written_as_a_float():
    limits = Limits(max_tokens_per_turn=1e1, step_s=5)
    assert (limits.max_tokens_per_turn, type(limits.max_tokens_per_turn), limits.step_s) == (10, int, 5.0)
    assert Limits.of({"tokens": 7.0, "context": None}) == Limits(tokens=7)


@pytest.mark.parametrize("bad", [{"turns": None}, {"step_s": None}, {"turns": 2.5}, {"context": True}, {"tokens": "9"}])
def test_what_is_no_bound_is_refused_by_name(bad):
    with pytest.raises(ConfigError, match=rf"limits\.{next(iter(bad))} must be a"):
        Limits(**bad)
