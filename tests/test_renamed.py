"""An old name works for one version, and warns once with the new one."""

from __future__ import annotations

import dataclasses
import importlib
import pickle

import pytest
import yaml

from agentrl import EpisodeHooks, Limits, resume_episode, run_episode
from agentrl.cli.episodes import PlayConfig
from agentrl.engine import ScriptedEngine
from agentrl.train.config import TrainConfig
from tests.test_episode_resume import SCRIPT, TASK, Sum
from tests.test_episode_resume import Host as Player

NAMES = [
    ("agentrl", "Host", "EpisodeHooks"),
    ("agentrl.chat.engine", "PlayerEngine", "ChatEngine"),
    ("agentrl.engine", "PlayerEngine", "ChatEngine"),
    ("agentrl.episode.options", "Host", "EpisodeHooks"),
    ("agentrl.rewards", "Written", "ModelOutput"),
    ("agentrl_envs.coding", "Grader", "TaskGrader"),
]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_of_a_class(module, old, new):
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"^{module}.{old} is {new} now") as warned:
        assert getattr(found, old) is getattr(found, new)
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("module", sorted({module for module, *_ in NAMES}))
def test_a_name_that_never_was(module):
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        importlib.import_module(module).Nothing  # noqa: B018


async def test_the_old_parameter_of_run_episode(renderer):
    given = {"engine": ScriptedEngine(SCRIPT, renderer), "renderer": renderer}
    with pytest.warns(DeprecationWarning, match="the parameter host of run_episode is hooks now") as warned:
        trajectory = await run_episode(Sum(), TASK, **given, host=EpisodeHooks(aborted=lambda: True))
    assert trajectory.stop == "aborted"
    assert [warning.filename for warning in warned] == [__file__]


async def test_both_names_of_a_parameter(renderer):
    given = {"engine": ScriptedEngine(SCRIPT, renderer), "renderer": renderer}
    with pytest.raises(TypeError, match="unexpected keyword argument 'host'"):
        await run_episode(Sum(), TASK, **given, host=EpisodeHooks(), hooks=EpisodeHooks())


async def test_the_old_parameter_of_resume_episode(renderer):
    player = Player(Sum, ScriptedEngine(SCRIPT, renderer), renderer, at=frozenset({4}))
    await player.play()
    parked, given = player.parked[-1], {"engine": player.engine, "renderer": renderer}
    with pytest.warns(DeprecationWarning, match="the parameter host of resume_episode is hooks now") as warned:
        trajectory = await resume_episode(parked, parked.env, **given, host=EpisodeHooks(aborted=lambda: True))
    assert trajectory.stop == "aborted"
    assert len(warned) == 1


OLD_LIMIT = "limits.turn_tokens is limits.max_tokens_per_turn now"


def test_the_old_name_of_a_limit():
    with pytest.warns(DeprecationWarning, match=OLD_LIMIT) as warned:
        limits = Limits(turns=2, turn_tokens=5)
    assert [warning.filename for warning in warned] == [__file__]
    assert limits == Limits(turns=2, max_tokens_per_turn=5) == pickle.loads(pickle.dumps(limits))
    with pytest.warns(DeprecationWarning, match=OLD_LIMIT) as warned:
        assert limits.turn_tokens == 5
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(DeprecationWarning, match=OLD_LIMIT):
        assert dataclasses.replace(limits, turn_tokens=7).max_tokens_per_turn == 7


def test_the_old_key_of_a_limit_in_a_configuration(tmp_path):
    values = yaml.safe_load(f"{{env: a.py:A, out: {tmp_path}, limits: {{turn_tokens: 9}}}}")
    with pytest.warns(FutureWarning, match=OLD_LIMIT) as warned:
        config = TrainConfig(**values)
    assert len(warned) == 1
    assert config.limits == {"turns": 8, "max_tokens_per_turn": 9}, "it overrides the default of tiny"
    assert config.options().limits.max_tokens_per_turn == 9


def test_the_old_key_of_a_limit_on_the_command_line():
    with pytest.warns(FutureWarning, match=OLD_LIMIT) as warned:
        config = PlayConfig.parse(["limits.turn_tokens=9"], {"limits": {"max_tokens_per_turn": 4}})
    assert len(warned) == 1
    assert config.limits.max_tokens_per_turn == 9
    with pytest.warns(FutureWarning, match=OLD_LIMIT):
        config = PlayConfig.parse(["limits.max_tokens_per_turn=9"], {"limits": {"turn_tokens": 4}})
    assert config.limits.max_tokens_per_turn == 9
