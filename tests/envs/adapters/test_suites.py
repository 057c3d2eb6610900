"""gem's, TextArena's and reasoning-gym's adapters over stand-ins, and what keeps such suites apart from each other."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from itertools import islice
from pathlib import Path

import pytest

from agentrl import ConfigError, EnvFactory, Limits, StopReason, Task
from agentrl.testing import rollout
from agentrl_envs.adapters import reasoning_gym
from agentrl_envs.adapters.suites import OwnRandom, suite

GEM, ARENA = "agentrl_envs.adapters.gem:Gem", "agentrl_envs.adapters.textarena:TextArena"
REASON = "agentrl_envs.adapters.reasoning_gym:ReasoningGym"
SUITES = ("gem", "textarena", "reasoning_gym")


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    """The stand-ins instead of the suites, if those are installed at all."""
    for name in [name for name in sys.modules if name.partition(".")[0] in SUITES]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("stand_ins")))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in SUITES]:
        del sys.modules[name]
    reasoning_gym._made.cache_clear()
    reasoning_gym._item.cache_clear()


async def played(env, config, said, renderer, seed=1, **limits):
    async with EnvFactory(env, config) as envs:
        task = Task(prompt="x", seed=seed, metadata={"name": config["name"]})
        return await rollout(envs.make(), task, said, renderer=renderer, limits=Limits(**limits))


def read(t):
    return [m["content"] for m in t.messages if m["role"] == "user"]


async def test_games_at_once_draw_their_own_global_numbers(renderer, capsys):
    before, level = random.getstate(), logging.getLogger().level
    turns = ["\\boxed{0}"] * 4
    async with EnvFactory(GEM, {"name": "game:Guess-v0", "options": {"most": 1000}}) as envs:
        tasks = [Task(seed=seed) for seed in (1, 2, 1, 3)]
        at_once = await asyncio.gather(
            *(rollout(envs.make(), task, turns, renderer=renderer, limits=Limits(turns=4)) for task in tasks)
        )
    for task, t in zip(tasks, at_once, strict=True):
        own = random.Random(task.seed)
        secrets = [own.randint(1, 1000) for _ in range(5)][1:]
        assert read(t)[1:] == [f"It was {secret}\nAgain." for secret in secrets]
    assert random.getstate() == before
    assert logging.getLogger().level == level
    assert capsys.readouterr().out == "", "what a suite prints goes to stderr"


async def test_gem_by_turns_and_its_ends(renderer):
    own = random.Random(7)
    secrets = [own.randint(1, 10) for _ in range(3)]
    config = {"name": "game:Guess-v0"}
    t = await played(GEM, config, ["no", f"\\boxed{{{secrets[2]}}}"], renderer, seed=7)
    assert (t.reward, t.stop, t.step_rewards) == (1.0, StopReason.DONE, [0.0, 1.0])
    assert read(t)[0] == "Guess\nEnter \\boxed{}."
    late = await played(GEM, config, ["late"], renderer)
    assert (late.reward, late.stop) == (0.0, StopReason.DONE)
    cut = await played(GEM, config, ["no", "no"], renderer, turns=2)
    assert (cut.reward, cut.stop) == (0.0, StopReason.MAX_TURNS)
    broken = await played(GEM, config, ["crash"], renderer)
    assert (broken.failure.kind, broken.reward) == ("environment", None)
    assert "IndexError: list index out of range" in broken.failure.error


async def test_textarena_tells_what_is_new_and_rewards_at_the_end(renderer):
    secret = random.Random(5).randint(1, 9)
    t = await played(ARENA, {"name": "Guess-v0"}, ["0", f"I say [{secret}]", f"{secret}"], renderer, seed=5)
    assert read(t) == ["Guess", "Not [0].", f"Not I say [{secret}].", "You found it."]
    assert (t.reward, t.stop) == (pytest.approx(1 / 3), StopReason.DONE)
    raw = await played(ARENA, {"name": "Guess-v0-raw"}, [f"[{secret}]"], renderer, seed=5)
    assert raw.reward == 1.0
    cut = await played(ARENA, {"name": "Guess-v0"}, ["0"], renderer, turns=1)
    assert cut.reward == 0.0


async def test_reasoning_gym_scores_by_the_suite(renderer, monkeypatch):
    monkeypatch.setattr(reasoning_gym, "SCORE_S", 0.3)
    async with EnvFactory(REASON, {"dataset": ["chain_sum", "sums"], "options": {"most": 99}, "size": 3}) as envs:
        train, held = (list(envs.cls.tasks(envs.config, split)) for split in ("train", "eval"))
        sums = random.Random(1)
        expected = f"{sums.randint(1, 99)} + {sums.randint(1, 99)} = ?"
        assert [task.prompt for task in train[2:4]] == [expected] * 2
        assert not {task.prompt for task in train} & {task.prompt for task in held}
        a, _, b, *_ = train[0].prompt.split()
        gold = f"So it is <answer> {int(a) + int(b)} </answer>"
        turns = [gold, "<answer>7</answer>", "no tags", *(f"<answer>{x}</answer>" for x in ("hang", "die", "raise"))]
        got = [await rollout(envs.make(), train[0], [turn], renderer=renderer) for turn in turns]
        assert [t.reward for t in got] == [1.0, 0.01, 0.0, 0.0, 0.0, 0.0]
        assert read(got[0]) == [f"{train[0].prompt}\n\nGive your final answer between <answer> and </answer>."]
        other = Task(prompt="1 + 1 = ?", metadata=train[0].metadata)
        with pytest.raises(ConfigError, match="now makes another question of chain_sum 0"):
            await rollout(envs.make(), other, [gold], renderer=renderer)
    assert envs.cls.needs(envs.config, 1) == []
    assert (
        "n_queens executes the model's text"
        in envs.cls.needs(envs.config.model_copy(update={"dataset": "n_queens"}), 1)[0]
    )


@pytest.mark.parametrize(
    ("env", "config", "said"),
    [
        (GEM, {"name": "game:guess-v0"}, "no environment of gem 'game:guess-v0'; did you mean game:Guess-v0?"),
        (GEM, {"name": []}, "name must have at least 1 item"),
        (ARENA, {"name": "Two-v0"}, "Two-v0 cannot be played alone: The number of players has to be 2"),
        (ARENA, {"name": "Guess-v0", "options": {"corpus": False}}, "run: python -m nltk.downloader words"),
        (ARENA, {"name": "Guess-v0", "options": {"colour": 1}}, "cannot play Guess-v0: .*TypeError.*colour"),
        (REASON, {"dataset": "chain_sun"}, "no data set of reasoning-gym 'chain_sun'; did you mean chain_sum"),
        (REASON, {"dataset": "sums", "options": {"most": 0}}, "sums refuses its options: most must be positive"),
    ],
)
async def test_what_cannot_be_played_is_told_before_the_first_episode(env, config, said):
    with pytest.raises(ConfigError, match=said.replace("?", "\\?")) as caught:
        async with EnvFactory(env, config):
            pass
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_command():
    with pytest.raises(ConfigError, match="No module named 'no_such_suite'; run: pip install no-such"):
        suite("no_such_suite", "no-such")


async def test_tasks_are_seeds_that_differ_by_split():
    async with EnvFactory(ARENA, {"name": ["Guess-v0", "Guess-v0-raw"]}) as envs:
        train, held = (list(islice(envs.cls.tasks(envs.config, split), 3)) for split in ("train", "eval"))
    assert [(t.seed, t.prompt, t.metadata["name"]) for t in train] == [
        (1, "Guess-v0", "Guess-v0"),
        (2, "Guess-v0-raw", "Guess-v0-raw"),
        (3, "Guess-v0", "Guess-v0"),
    ]
    assert [t.seed for t in held] == [2**31 + 1, 2**31 + 2, 2**31 + 3]


def test_numpys_global_numbers_are_kept_apart_too():
    import numpy as np

    before = np.random.get_state()[1].tolist()
    one, two = OwnRandom(1), OwnRandom(2)
    drawn = []
    for own in (one, two, one, two):
        with own:
            drawn.append(np.random.random())
    assert drawn == [
        np.random.RandomState(1).random_sample(2)[0],
        np.random.RandomState(2).random_sample(2)[0],
        np.random.RandomState(1).random_sample(2)[1],
        np.random.RandomState(2).random_sample(2)[1],
    ]
    assert np.random.get_state()[1].tolist() == before
