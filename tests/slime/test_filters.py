"""Which groups are trained on, and which come out of the buffer first."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from agentrl.errors import ConfigError
from agentrl.slime import has_spread, oldest_first, prefer_spread
from tests.slime.hook_samples import Segment, args, failed, fan_out, played


@dataclass
class Output:
    """The fields of slime's DynamicFilterOutput."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


@pytest.fixture
def hosted(monkeypatch):
    """A Sample class whose package has slime's module of filters."""
    module = ModuleType("fakehost.rollout.filter_hub.base_types")
    module.DynamicFilterOutput = Output
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return type("Sample", (Segment,), {"__module__": "fakehost.utils.types"})


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ([played(0, 1.0), played(0, 0.0)], None),
        ([played(0, 1.0), played(0, 1.0)], "zero_std_1.0"),
        ([played(0, 0.12), played(0, 0.12 + 1e-7)], "zero_std_0.1"),
        ([fan_out(0, 1.0, 3), fan_out(0, 0.0, 1)], None),
        ([fan_out(0, 1.0, 3), fan_out(0, 1.0, 1)], "zero_std_1.0"),
        ([played(0, 1.0), failed(0), played(0, 1.0)], "zero_std_1.0"),
        ([played(0, 1.0), failed(0), played(0, 0.5)], None),
        ([played(0, 1.0), failed(0)], "failed_environment_step"),
        ([failed(0, boundary="tool"), failed(0, kind="bug"), failed(0, kind="bug")], "failed_bug_step"),
        ([played(0, 1.0), played(0, 0.0, stop="aborted")], "aborted"),
    ],
)
def test_what_is_kept_and_why_not(hosted, group, reason):
    for sample in [s for item in group for s in (item if isinstance(item, list) else [item])]:
        sample.__class__ = hosted
    assert has_spread(args(), group) == Output(reason is None, reason)
    assert prefer_spread(args(), group) == Output(reason is None, reason, keep_when_insufficient=True)


def test_a_bool_where_the_host_has_no_filter_output():
    assert has_spread(args(), [played(0, 1.0), played(0, 0.0)]) is True
    assert has_spread(args(), [played(0, 1.0), failed(0)]) is False
    assert prefer_spread(args(), [played(0, 1.0), failed(0)]) is False


def test_the_reward_key():
    group = [played(0, {"score": 1.0, "right": 0.0}), played(0, {"score": 1.0, "right": 1.0})]
    assert has_spread(args(reward_key="score"), group) is False
    assert has_spread(args(reward_key="right"), group) is True


def test_samples_of_another_generate_function(Sample):
    assert has_spread(args(), [Sample(index=i, reward=float(i), metadata=None) for i in range(2)]) is True


@pytest.mark.parametrize("group", [[played(0)], [fan_out(0, 1.0, 3)]])
def test_one_episode_never_differs(group):
    with pytest.raises(ConfigError, match="set --n-samples-per-prompt to at least 2"):
        has_spread(args(), group)


def test_the_oldest_prompt_first_and_nothing_lost():
    groups = {number: [played(number), played(number)] for number in (7, 2, 9, 4)}
    buffer = [*groups.values()]
    assert oldest_first(args(), None, buffer, 2) == [groups[2], groups[4]]
    assert buffer == [groups[7], groups[9]], "taken out of the caller's own list"
    buffer.append(fanned := [fan_out(3, 1.0, 2), fan_out(3, 0.0, 1)])
    assert oldest_first(args(), None, buffer, 10) == [fanned, groups[7], groups[9]]
    assert buffer == []


def test_a_data_source_that_numbers_nothing_keeps_its_order():
    groups = [[played(None)], [played(None)], [played(None)]]
    assert oldest_first(args(), None, [*groups], 2) == groups[:2]
