"""Canaries: what trips each, what must not, and how each is switched off."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agentrl.errors import CanaryError
from agentrl.monitor import Canaries, CanaryConfig, RolloutMetrics

HEALTHY = {
    "reward_mean": 0.5,
    "episodes": 128,
    "groups": 16,
    "zero_advantage_groups": 3,
    "stops": {"done": 120, "turns": 8},
    "episodes_with_tools": 128,
    "tool_call_rate": 0.8,
    "bad_call_rate": 0.05,
    "tool_errors": {},
    "sampled_tokens": 9000,
    "trained_tokens": 9000,
    "masked_tokens": {},
}
BROKEN = {
    "sampled_tokens": 900,
    "trained_tokens": 0,
    "masked_tokens": {"env_failure": 900},
    "episodes_with_tools": 0,
    "tool_call_rate": 0.0,
    "stops": {"failed": 128},
}
SILENT, LOUD, FLAT = {"tool_call_rate": 0.0}, {"bad_call_rate": 0.9}, {"zero_advantage_groups": 16}


def run(*steps: dict, grouped: bool = True, **config) -> list[str]:
    """Watch these steps, each healthy but for what is given; the warnings."""
    canaries, warnings = Canaries(CanaryConfig(**config), grouped=grouped), list[str]()
    for number, step in enumerate(steps, 1):
        warnings += canaries.watch(number, RolloutMetrics(**{**HEALTHY, **step}))
    return warnings


def test_a_healthy_run_hears_nothing():
    assert run(*[{}] * 100) == []


def test_no_trainable_token_stops_at_once_and_says_what_became_of_them():
    with pytest.raises(CanaryError) as error:
        run({}, BROKEN)
    assert str(error.value) == (
        "step 2: no token can be trained: 900 were sampled, masked: env_failure 900; the 128 episodes ended so: "
        "failed 128; look at one with agentrl show, and at the warnings above"
    )


def test_a_step_of_overlong_episodes_alone_was_asked_for():
    overlong = {"trained_tokens": 0, "masked_tokens": {"overlong": 9000}}
    assert run(overlong) == []
    with pytest.raises(CanaryError):
        run({**overlong, "masked_tokens": {"overlong": 8000, "env_failure": 1000}})
    with pytest.raises(CanaryError):
        run({**overlong, "sampled_tokens": 0, "masked_tokens": {}})


def test_no_tool_call_in_an_environment_with_tools():
    with pytest.raises(CanaryError, match=r"steps 3 to 12: none of 1280 episodes called a tool, though they had tools"):
        run({}, {}, *[SILENT] * 10)
    with pytest.raises(CanaryError, match=r"steps 1 to 3: none of 384 episodes"):
        run(*[SILENT] * 3, no_tool_calls=3)


@pytest.mark.parametrize(
    ("steps", "config"),
    [
        ([SILENT] * 9, {}),
        ([*[SILENT] * 9, {"tool_call_rate": 1 / 128}] * 5, {}),
        ([{**SILENT, "episodes_with_tools": 0}] * 50, {}),
        ([SILENT] * 50, {"no_tool_calls": 0}),
    ],
    ids=["not yet", "now and then one", "no tools", "switched off"],
)
def test_what_is_no_silence(steps, config):
    assert run(*steps, **config) == []


def test_bad_calls_that_jump():
    with pytest.raises(CanaryError, match=r"steps 6 to 8: 90% of the turns hold a wrong tool call, before it was 5%"):
        run(*[{}] * 5, *[LOUD] * 3)
    with pytest.raises(CanaryError, match=r"^steps 5 to 7: 30%"):
        run(*[{}] * 4, *[{"bad_call_rate": 0.3}] * 3, bad_call_jump=0.25)


@pytest.mark.parametrize(
    ("steps", "config"),
    [
        ([{}, {}, {}, LOUD, LOUD, {}, LOUD, LOUD, {}], {}),
        ([LOUD] * 50, {}),
        ([{}, *[LOUD] * 50], {}),
        ([{"bad_call_rate": n / 100} for n in range(100)], {}),
        ([*[{}] * 5, *[LOUD] * 50], {"bad_call_jump": 0}),
    ],
    ids=["it came back", "it was so from the start", "too short a start to judge by", "a slow drift", "switched off"],
)
def test_what_is_no_jump(steps, config):
    assert run(*steps, **config) == []


def test_the_baseline_does_not_learn_from_the_jump():
    with pytest.raises(CanaryError, match="before it was 5%"):
        run(*[{}] * 5, LOUD, LOUD, {}, LOUD, LOUD, LOUD)


def test_no_advantage_anywhere_is_a_warning_repeated_now_and_then():
    warnings = run(*[FLAT] * 25)
    assert [warning.split(":")[0] for warning in warnings] == ["steps 1 to 10", "steps 1 to 20"]
    assert "the rewards of no group differed (their mean is 0.5), so nothing is learned" in warnings[0]
    assert run(*[FLAT] * 9, {}, *[FLAT] * 9) == []
    assert run(*[FLAT] * 25, grouped=False) == []


def test_the_first_exception_of_each_kind_in_a_tool_is_a_warning():
    key, index = (
        {"tool_errors": {"search:KeyError": 4}},
        {"tool_errors": {"search:KeyError": 1, "search:IndexError": 2}},
    )
    warnings = run({}, key, key, index, index)
    assert [warning[:6] for warning in warnings] == ["step 2", "step 4"]
    assert "search:KeyError 4" in warnings[0]
    assert "search:IndexError 2" in warnings[1]
    assert "KeyError" not in warnings[1]


def test_groups_that_fail_whole_in_step_after_step_are_a_warning_that_names_the_line():
    broken = {
        "failed_groups": 4,
        "failed_episodes": 16,
        "failed_at": {"my_env.py:12 InfraError": 14, "score KeyError": 2},
    }
    warnings = run({}, broken, {}, broken, broken, *[broken] * 12)
    assert [warning.split(":")[0] for warning in warnings] == ["steps 1 to 5", "steps 6 to 15"]
    assert "every episode of 12 in 80 groups failed" in warnings[0]
    assert "most failures at my_env.py:12 InfraError, score KeyError" in warnings[0]


def test_groups_without_credit_are_a_warning_once():
    [warning] = run({}, *[{"uncredited_groups": 3}] * 5)
    assert warning.startswith(
        "step 2: in 3 of 16 groups all episodes have the same total reward, so credit: turn gives"
    )
    assert run({"uncredited_groups": 3}, grouped=False) == []


def test_failures_by_chance_are_no_failing_groups():
    outage = {"failed_groups": 16}
    assert run({}, outage, outage, *[{}] * 9, outage) == []
    assert run(*[{"failed_episodes": 40}] * 20) == []
    assert run(*[{"groups": 100, "failed_groups": 1}, {"groups": 100}] * 20) == []


@pytest.mark.parametrize("values", [{"no_tool_calls": -1}, {"bad_call_jump": 2}, {"x": 1}])
def test_bad_configurations_are_refused(values):
    with pytest.raises(ValidationError):
        CanaryConfig(**values)
