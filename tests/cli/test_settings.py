from __future__ import annotations

import pytest

from agentrl import ConfigError, Limits
from agentrl.cli.episodes import PlayConfig
from agentrl.cli.settings import merge, parse_settings


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], {}),
        (["steps=3"], {"steps": 3}),
        (["limits.turns=4", "limits.tokens=9"], {"limits": {"turns": 4, "tokens": 9}}),
        (["steps=1", "steps=2"], {"steps": 2}),
        (["learning_rate=3e-4"], {"learning_rate": 3e-4}),
        (["a.b.c=[1, x]"], {"a": {"b": {"c": [1, "x"]}}}),
        (["env_config.url=http://h:1/?q=1"], {"env_config": {"url": "http://h:1/?q=1"}}),
        (["reward="], {"reward": None}),
        (["name=1e"], {"name": "1e"}),
    ],
)
def test_values_are_yaml_and_dots_nest(pairs, expected):
    assert parse_settings(pairs) == expected


@pytest.mark.parametrize("pair", ["steps", "=3", "a..b=1", ".a=1", "a.=1", "x=[1", "x={a: b: c}"])
def test_what_is_no_setting_is_refused(pair):
    with pytest.raises(ConfigError, match="--set "):
        parse_settings([pair])


def test_merge_leaves_its_arguments_alone():
    base, over = {"limits": {"turns": 4}, "steps": 1}, {"limits": {"tokens": 9}, "steps": {"now": "a mapping"}}
    assert merge(base, over) == {"limits": {"turns": 4, "tokens": 9}, "steps": {"now": "a mapping"}}
    assert base == {"limits": {"turns": 4}, "steps": 1}
    assert over == {"limits": {"tokens": 9}, "steps": {"now": "a mapping"}}


def test_episode_settings_win_over_the_runs_own():
    config = PlayConfig.parse(["limits.turns=2"], {"limits": {"turns": 9, "tokens": 5}, "env_config": {"k": 1}})
    assert config == PlayConfig({"k": 1}, Limits(turns=2, tokens=5))


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("steps=3", "unknown key steps; the keys are env_config, limits, special_tokens"),
        ("limits=3", "name a key of it"),
        ("limits.turn=3", "unknown key limits.turn; did you mean turns?"),
        ("limits.turns=many", "limits.turns must be a whole number, not 'many'"),
        ("limits.turns=-1", "limits.turns must be positive"),
    ],
)
def test_episode_settings_are_checked(pair, problem):
    with pytest.raises(ConfigError, match=problem):
        PlayConfig.parse([pair])


def test_columns_of_data_are_set_for_eval_and_play():
    columns = PlayConfig.parse(["columns.input_key=question", "columns.label_key=answer"]).columns
    assert (columns.input_key, columns.label_key, columns.tool_key) == ("question", "answer", None)
    assert PlayConfig.parse([]).columns is None
    with pytest.raises(ConfigError, match="unknown key input; did you mean input_key"):
        PlayConfig.parse(["columns.input=question"])
