"""The oracle names each planted difference, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from agentrl import ConfigError, EpisodeOptions, Limits, StopReason, run_episode
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn, differences
from agentrl.testing import call
from tests.episode import compacting
from tests.episode.compacting import Short, Walker, oracle
from tests.hosts.envs import Breaks, BreaksAtReset, TwoTools, Weather, turns
from tests.hosts.hosting import played

TASK = next(iter(Weather.tasks(None, "train")))
GOOD = [call("lookup", place=TASK.metadata["place"]), TASK.label]
OPTIONS = EpisodeOptions(limits=Limits(max_tokens_per_turn=40))


async def told(host, renderer, env=Weather, **options):
    names = [each.name for each in await differences(host, env(), renderer, **{"options": OPTIONS, **options})]
    return sorted(names)


@pytest.mark.parametrize("cls", [Weather, TwoTools, Breaks, BreaksAtReset])
@pytest.mark.parametrize("seed", range(6))
async def test_an_equal_host_has_no_difference(cls, seed, renderer):
    rng = Random(seed)
    task = rng.choice([*cls.tasks(None, "train")])
    host = await played(cls(), task, [*turns(task, rng), *["and so on"] * 9], renderer, OPTIONS)
    assert await told(host, renderer, cls) == []


def changed(values, place, value):
    return [*values[:place], value, *values[place + 1 :]]


async def test_each_difference_has_its_name(renderer):
    host = await played(Weather(), TASK, GOOD, renderer, OPTIONS)
    (first, second), (row,) = host.turns, host.rows
    last = len(row.tokens) - 1
    planted = {
        "prompt": replace(host, turns=[first, replace(second, input_ids=changed(second.input_ids, 40, 7))]),
        "turns": replace(host, turns=[first]),
        "rows": replace(host, rows=[row, row]),
        "ids": replace(host, rows=[replace(row, tokens=changed(row.tokens, last, 7))]),
        "mask": replace(host, rows=[replace(row, loss_mask=changed(row.loss_mask, last, 0))]),
        "log_probs": replace(host, rows=[replace(row, log_probs=changed(row.log_probs, last, -9.0))]),
        "reward": replace(host, reward=0.5),
        "stop": replace(host, stop=StopReason.MAX_TURNS),
        "failure": replace(host, reward=None),
    }
    for name, wrong in planted.items():
        assert await told(wrong, renderer) == [name]
    assert await told(replace(host, turns=[*host.turns, second]), renderer) == ["turns"]
    assert await told(replace(host, rows=[replace(row, tokens=row.tokens[:-1])]), renderer) == ["ids"]
    assert await told(replace(host, rows=[replace(row, log_probs=[float("nan")] * len(row.tokens))]), renderer) == [
        "log_probs"
    ]
    assert await told(replace(host, rows=None, stop=None), renderer) == []


async def test_several_differences_are_all_named(renderer):
    host = await played(Weather(), TASK, GOOD, renderer, OPTIONS)
    (row,) = host.rows
    wrong = replace(host, reward=0.0, stop=StopReason.ABORTED, rows=[replace(row, loss_mask=[0] * len(row.tokens))])
    assert await told(wrong, renderer) == ["mask", "reward", "stop"]


async def test_a_shift_by_one_token_is_noticed(renderer):
    """The classic mistake of a door: log-probs of the wrong token."""
    host = await played(Weather(), TASK, GOOD, renderer, OPTIONS)
    (row,) = host.rows
    shifted = [*row.log_probs[1:], 0.0]
    assert await told(replace(host, rows=[replace(row, log_probs=shifted)]), renderer) == ["log_probs"]


async def test_a_failed_episode_that_is_rewarded_or_trained(renderer):
    task = next(task for task in Breaks.tasks(None, "train") if task.seed % 2)
    script = [call("lookup", place=task.metadata["place"]), task.label]
    host = await played(Breaks(), task, script, renderer, OPTIONS)
    (row,) = host.rows
    assert (host.reward, any(row.loss_mask)) == (None, False)
    assert await told(replace(host, reward=0.0), renderer, Breaks) == ["failure"]
    trained = replace(row, loss_mask=changed(row.loss_mask, len(row.tokens) - 1, 1))
    assert await told(replace(host, rows=[trained]), renderer, Breaks) == ["mask"]
    no_turn = HostEpisode(task, [], [HostRow([1, 2], [0, 1], [0.0, -1.0])])
    assert await told(no_turn, renderer, BreaksAtReset) == ["mask"]


async def test_a_host_that_samples_beyond_the_limit(renderer):
    host = await played(Weather(), TASK, ["a long answer " * 20], renderer, EpisodeOptions())
    (turn,) = host.turns
    assert len(turn.tokens) > 40
    assert await told(host, renderer) == ["ids", "stop"]


async def test_the_words_of_a_difference(renderer):
    host = await played(Weather(), TASK, GOOD, renderer, OPTIONS)
    (difference,) = await differences(replace(host, reward=0.5), Weather(), renderer)
    assert str(difference) == "reward: the host has 0.5, and agentrl 1"
    (difference,) = await differences(replace(host, turns=host.turns[:1]), Weather(), renderer)
    assert str(difference) == "turns: the host ends after 1 turns, and agentrl goes on"
    ids = await differences(replace(host, turns=[HostTurn([5], [6], [-1.0])]), Weather(), renderer)
    assert str(ids[0]).startswith("prompt: before turn 1, token 0: the host has 5, and agentrl ")


async def test_an_episode_with_summaries_is_compared_row_by_row(renderer):
    """The rows come from an oracle of segments, which reads the requests alone."""
    limits = Limits(turns=13, context=780, compact_at=330)
    engine = Walker(renderer)
    options = EpisodeOptions(limits=limits)
    await run_episode(Short(), compacting.TASK, engine=engine, renderer=renderer, options=options)
    rows = [
        HostRow(row.ids, [*([0] * len(row.prompt)), *row.mask], [*([0.0] * len(row.prompt)), *row.log_probs])
        for row in oracle(engine.log)
    ]
    turns = [HostTurn(ids, sampled, log_probs) for ids, sampled, log_probs in engine.log]
    host = HostEpisode(compacting.TASK, turns, rows, reward=1.0, stop=StopReason.DONE)
    assert await differences(host, Short(), renderer, options=options) == []
    joined = replace(host, rows=rows[:-1])
    assert [one.name for one in await differences(joined, Short(), renderer, options=options)] == ["rows"]


def test_doors_with_one_sequence_for_each_episode_refuse_summaries():
    from agentrl.hosts.trl import TRLRollouts

    with pytest.raises(ConfigError, match=r"TRL takes one sequence for each episode: leave out limits\.compact_at"):
        TRLRollouts(Short, limits={"compact_at": 500})
