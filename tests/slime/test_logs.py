"""agentrl's accounting beside slime's metrics, and the canaries that read it."""

from __future__ import annotations

import logging
import re
import sys
from types import ModuleType

import pytest

from agentrl.slime import log_eval, log_rollout
from agentrl.slime.logs import _canaries, rollout_metrics
from tests.slime.hook_samples import Segment, args, failed, fan_out, played


@pytest.fixture(autouse=True)
def _canaries_anew():
    _canaries.cache_clear()


class Calls(list):
    Sample = type("Sample", (Segment,), {"__module__": "fakehost.utils.types"})


@pytest.fixture(params=["observability.logging_utils", "utils.logging_utils", "utils.tracking_utils"])
def tracked(request, monkeypatch):
    """What the host tracks, as (metrics, step key); its Samples are of the class `tracked.Sample`."""
    calls = Calls()
    modules = {
        "utils.logging_utils": {},  # in miles without the function
        request.param: {"log": lambda args, metrics, step_key: calls.append((metrics, step_key))},
        f"{request.param.partition('.')[0]}.metric_utils": {"compute_rollout_step": lambda args, step: step * 100},
    }
    for name, content in modules.items():
        module = ModuleType(f"fakehost.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def a_rollout(cls=Segment):
    """Two prompts of three episodes: one fans out, one has no news, one fails, one is masked by slime."""
    info = {
        "tool_errors": {"search:KeyError": 2},
        "refused_hosts": {"pypi.org:443": 1},
        "observation_tokens_cut": 7,
        "special_tokens": 3,
        "result_differs": 1,
    }
    samples = [
        *fan_out(0, 1.0, 3, cls),
        played(
            0,
            0.0,
            cls,
            turns=3,
            bad_calls=1,
            reward_parts={"right": 0.0},
            info=info,
            stop="max_tokens",
            bridges_checked=5,
        ),
        failed(0, cls),
        played(1, 0.5, cls, restarts=2, resumes=1, reward_parts={"right": 1.0, "short": 0.25}),
        played(1, 0.5, cls, restarts=1, bridges_different=1),
        played(1, 0.5, cls, bad_calls=1),
    ]
    samples[-1].loss_mask = [0, 0, 0, 1]  # as --mask-offpolicy-in-partial-rollout does
    samples[-2].remove_sample = True  # as --rollout-sample-filter-path does
    return samples


METRICS = {
    "reward_mean": 0.5,
    "reward_std": pytest.approx(0.1**0.5),
    "response_length_mean": (3 * 4 + 4 * 4) / 5,
    "reward_parts": {"right": 0.5, "short": 0.25},
    "role_rewards": {},
    "episodes": 6,
    "samples": 8,
    "groups": 2,
    "zero_advantage_groups": 1,
    "uncredited_groups": 0,
    "failed_episodes": 1,
    "unscored_episodes": 0,
    "failures": {"environment/step": 1},
    "failed_at": {"my_env.py:3 InfraError": 1},
    "failed_groups": 0,
    "stops": {"done": 4, "max_tokens": 1, "failed": 1},
    "resumes": 1,
    "restarts": 3,
    "turns_mean": 7 / 5,
    "bad_call_rate": 2 / 7,
    "truncation_rate": 1 / 5,
    "episodes_with_tools": 0,
    "tool_call_rate": 0.0,
    "tool_errors": {"search:KeyError": 2},
    "refused_hosts": {"pypi.org:443": 1},
    "observation_tokens_cut": 7,
    "special_tokens": 3,
    "result_differs": 1,
    "bridges_checked": 5,
    "bridges_different": 1,
    "sampled_tokens": 24,
    "trained_tokens": 24 - 3 - 3 - 2,
    "masked_tokens": {"env_failure": 3, "host": 3 + 2},
}


def test_what_a_rollout_came_to():
    metrics = rollout_metrics(args(), a_rollout())
    assert metrics.to_json() == METRICS
    assert metrics.sampled_tokens == metrics.trained_tokens + sum(metrics.masked_tokens.values())


def test_nesting_and_strangers_do_not_matter(Sample):
    stranger = Sample(group_index=0, index=99, reward=100.0, metadata=None)
    samples = a_rollout()
    assert rollout_metrics(args(), [samples[:3], [samples[3:]], stranger]).to_json() == METRICS
    assert rollout_metrics(args(), [stranger]) == rollout_metrics(args(), []) is None


def test_a_rollout_in_which_all_failed():
    metrics = rollout_metrics(args(), [failed(0), failed(0, kind="bug", boundary="score")])
    assert (metrics.reward_mean, metrics.turns_mean, metrics.bad_call_rate) == (0.0, 0.0, 0.0)
    assert metrics.failures == {"environment/step": 1, "bug/score": 1}
    assert (metrics.failed_groups, metrics.failed_at) == (1, {"my_env.py:3 InfraError": 2})
    assert (metrics.zero_advantage_groups, metrics.trained_tokens) == (1, 0)


def test_tool_calls_are_rated_where_there_are_tools():
    samples = [played(0, tools=2, tool_calls=3), played(0, tools=2, tool_calls=0), played(0, tools=0, tool_calls=0)]
    metrics = rollout_metrics(args(), samples)
    assert (metrics.episodes_with_tools, metrics.tool_call_rate) == (2, 0.5)


def test_the_host_tracks_them_by_path_at_its_own_step(tracked):
    assert log_rollout(3, args(), a_rollout(tracked.Sample), None, 1.5) is False, "slime goes on with its own"
    ((metrics, step_key),) = tracked
    assert (step_key, metrics["rollout/step"]) == ("rollout/step", 300)
    assert metrics["rollout/agentrl/failures/environment/step"] == 1
    assert metrics["rollout/agentrl/masked_tokens/host"] == 5
    assert metrics["rollout/agentrl/stops/done"] == 4
    assert metrics["rollout/agentrl/tool_errors/search:KeyError"] == 2
    assert all(isinstance(value, int | float) for value in metrics.values()), "TensorBoard takes numbers alone"


def test_without_a_tracker_they_stand_in_the_log(caplog):
    caplog.set_level(logging.INFO)
    assert log_rollout(3, args(), a_rollout(), {"own": 1}, 1.5) is False
    assert "rollout 3: {'rollout/agentrl/reward_mean': 0.5, " in caplog.text


@pytest.mark.parametrize("left_out", [0, 3])
def test_each_rollout_of_which_the_host_masks_most_is_reported(caplog, left_out):
    samples = a_rollout()
    for sample in samples:
        sample.remove_sample = True
    if left_out:
        samples[0].metadata["agentrl"]["segments_left_out"] = left_out
    for step in (3, 4):
        log_rollout(step, args(), samples, None, 1.5)
    warned = [record.getMessage() for record in caplog.records if "masked as host" in record.getMessage()]
    remedy = "3 segments were left out, .*: run `agentrl check slime`" if left_out else "look at its filters"
    assert [
        re.match(rf"rollout {step}: 21 of 24 sampled tokens .*{remedy}", text) is not None
        for step, text in zip((3, 4), warned, strict=True)
    ] == [True, True]


def test_a_rollout_of_which_the_host_masks_less_than_half_is_not_reported(caplog):
    log_rollout(3, args(), a_rollout(), None, 1.5)
    assert "masked as host" not in caplog.text


def test_replayed_rollouts_are_not_logged(tracked):
    """slime logs nothing under --load-debug-rollout-data."""
    assert log_rollout(3, args(load_debug_rollout_data="x.pt"), a_rollout(tracked.Sample), None, 1.5) is False
    assert tracked == []


def test_strangers_alone_are_left_to_slime(tracked):
    assert log_rollout(3, args(), [tracked.Sample(index=1, reward=1.0)], None, 1.5) is False
    assert log_eval(3, args(), {"own": {"rewards": [1.0]}, "none": {"samples": []}}, None) is False
    assert tracked == []


def test_evaluation_by_data_set(tracked):
    samples = [played(None, {"hard": r}, tracked.Sample) for r in (1.0, 0.5)] + [failed(None, tracked.Sample)]
    samples[-1].reward = {"hard": 0.0}
    given = args(reward_key="easy", eval_reward_key="hard")
    assert log_eval(4, given, {"held_out": {"rewards": [1.0, 0.5, 0.0], "samples": samples}}, None) is False
    ((metrics, step_key),) = tracked
    assert (step_key, metrics["eval/step"]) == ("eval/step", 400)
    assert metrics["eval/held_out/agentrl/reward_mean"] == 0.75, "the failed one left out"
    assert metrics["eval/held_out/agentrl/episodes"] == 3


def warnings(caplog, rollouts, **given):
    """The canaries' warnings over these rollouts, counted from 1."""
    caplog.set_level(logging.WARNING)
    for number, samples in enumerate(rollouts, 1):
        log_rollout(number, args(**given), samples, None, 1.0)
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_canaries_warn_and_never_stop(caplog):
    spread = [played(0, 1.0), played(0, 0.0)]
    found = warnings(caplog, [spread, [failed(0), failed(0)], spread])
    assert len(found) == 1
    assert found[0].startswith(
        "step 2: no token can be trained: 6 were sampled, masked: env_failure 6; the 2 episodes ended so: failed 2;"
    )


def test_rewards_that_do_not_differ(caplog):
    flat = [played(0, 1.0), played(0, 1.0)]
    assert warnings(caplog, [flat] * 9) == []
    _canaries.cache_clear()
    assert [text.partition(":")[0] for text in warnings(caplog, [flat] * 10)] == ["steps 1 to 10"]


def test_rewards_that_nobody_compares_may_be_equal(caplog):
    assert warnings(caplog, [[played(0, 1.0)]] * 20, advantage_estimator="ppo") == []


def test_a_tool_with_a_bug(caplog):
    broken = [played(0, 1.0, info={"tool_errors": {"search:KeyError": 2}}), played(0, 0.0)]
    found = warnings(caplog, [broken, broken])
    assert len(found) == 1, "each kind once"
    assert found[0].startswith("step 1: a tool raised what no tool should: search:KeyError 2;")


def test_no_tool_is_ever_called(caplog):
    silent = [played(0, 1.0, tools=1, tool_calls=0), played(0, 0.0, tools=1, tool_calls=0)]
    (found,) = warnings(caplog, [silent] * 10)
    assert found.startswith("steps 1 to 10: none of 20 episodes called a tool, though they had tools")
