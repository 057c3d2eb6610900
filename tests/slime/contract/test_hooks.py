"""agentrl's hooks where the host calls them, and one episode that becomes several samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from agentrl import ConfigError, InfraError
from agentrl.rewards import grader
from agentrl.slime import log_eval, log_rollout
from agentrl.slime.logs import rollout_metrics
from tests.doubles.judge import ScriptedJudge, serving
from tests.slime.conftest import ENV_FILE
from tests.slime.contract.quiz import Plain
from tests.slime.contract.quiz import quiz as quiz
from tests.slime.player import Player


@pytest.mark.path("group reward")
def test_group_reward(start, rows):
    """The host overwrites every reward with what its group reward model says."""
    run = start(rows(), group_rm=True, custom_rm_path="agentrl.slime.reward")
    samples, data, _ = run.train()
    assert data["raw_reward"] == [1.0] * 4 + [0.0, 0.0] + [1.0] * 2
    assert [s.reward for s in samples] == data["raw_reward"]


@pytest.mark.path("group reward")
def test_group_reward_of_failed_and_of_resumed_groups(start, rows, held):
    given = rows()
    given[0]["metadata"] = {"held_in": "tool"}
    given[1]["metadata"] = {"break": "step", "how": "world", "odd": True}
    run = start(
        given,
        group_rm=True,
        custom_rm_path="agentrl.slime.reward",
        partial_rollout=True,
        rollout_batch_size=3,
        over_sampling_batch_size=4,
        global_batch_size=6,
    )
    held(run)
    samples, data, _ = run.train()
    assert data["raw_reward"] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert [s.remove_sample for s in samples] == [False, True, False, False, False, False]
    samples, data, _ = run.train(1)
    assert [s.group_index for s in samples[:2]] == [0, 0]
    assert data["raw_reward"][:2] == [1.0, 1.0]


@pytest.mark.path("group reward")
def test_group_reward_of_a_judge_that_compares(start, rows, tmp_path, monkeypatch):
    """It reads each group once, and its ranks replace the Env's rewards."""
    say, said = Player._say, count()
    monkeypatch.setattr(Player, "_say", lambda self, ids: lengthened(say(self, ids), said))
    judge = ScriptedJudge(lambda text, reference: len(text))
    with serving(judge) as url:
        made = (
            f"from agentrl.rewards import RelativeJudge\njudge = RelativeJudge(base_url={url!r}, model='m', twice=0)\n"
        )
        (tmp_path / f"{tmp_path.name}.py").write_text(made)  # each host loads a module of its own name
        monkeypatch.syspath_prepend(str(tmp_path))
        run = start(rows(), group_rm=True, custom_rm_path=f"{tmp_path.name}.judge")
        samples, data, _ = run.train()
    assert len(judge.prompts) == 4
    for shorter, longer in (sorted(samples[i : i + 2], key=lambda one: len(one.response)) for i in (0, 2, 4, 6)):
        assert shorter.group_index == longer.group_index
        assert (shorter.reward, longer.reward) == (0.0, 1.0)
    assert data["raw_reward"] == [sample.reward for sample in samples]


def lengthened(said: Any, places: Iterator[int]) -> Any:
    """A turn of text, each longer than the one before; a call as it is."""
    return said + "!" * next(places) if isinstance(said, str) else said


@pytest.mark.path("dynamic filter of agentrl.slime")
def test_filter(start, rows):
    """A group with a failure beside one valid episode teaches nothing; the stock filter would see a spread."""
    given = rows(reward="index")
    given[0]["metadata"] |= {"break": "reset", "how": "world", "odd": True}
    run = start(
        given,
        dynamic_sampling_filter_path="agentrl.slime.has_spread",
        rollout_batch_size=3,
        global_batch_size=6,
        over_sampling_batch_size=4,
    )
    samples, metrics = run.samples()
    assert {s.group_index for s in samples} == {1, 2, 3}
    assert metrics == {"rollout/dynamic_filter/drop_failed_environment_reset": 1}


@grader
async def broken(output):
    raise InfraError("the judge is away")


@pytest.mark.path("a grader that fails beside the host's own generate function")
def test_a_grader_that_fails_beside_the_hosts_own_generate_function(start, rows, renderer):
    """Metrics of agentrl's are about Envs. The log hooks leave such samples to the host."""
    path = f"{__name__}.broken"
    run = start(
        rows(),
        engine=Plain(renderer),
        custom_generate_function_path=None,
        custom_rm_path=path,
        rollout_max_response_len=16,
        custom_reward_post_process_path="agentrl.slime.post_process_rewards",
    )
    samples, data, _ = run.train()
    assert log_rollout(0, run.args, samples, {}, 1.0) is False
    assert data["raw_reward"] == data["rewards"] == [0.0] * 8
    assert not any(sum(mask) for mask in data["loss_masks"])
    run.args.eval_datasets[0].custom_rm_path = path
    result = run.evaluate()
    assert log_eval(0, run.args, {"held_out": result}, {}) is False
    assert result["rewards"] == [0.0] * 8


@pytest.mark.path("a grader that fails after an episode of an Env")
def test_a_grader_that_fails_after_an_episode(start, rows):
    run = start(rows(), agentrl={"env": f"{ENV_FILE}:Unscored"}, custom_rm_path=f"{__name__}.broken")
    samples, _, _ = run.train()
    metrics = rollout_metrics(run.args, samples)
    assert (metrics.failed_episodes, metrics.failures) == (8, {"environment/score": 8})
    counts = metrics.to_json()
    assert counts["sampled_tokens"] == counts["masked_tokens"]["env_failure"] > 0 == counts["trained_tokens"]
    for sample in samples:
        spans = sample.metadata["agentrl"]["spans"]
        assert {reason for _, _, kind, reason, _ in spans if kind == "sampled"} == {"env_failure"}


@pytest.mark.path("group reward of a user's function")
def test_a_users_group_reward_of_a_failed_episode_is_none(host, start, rows):
    """The host gives it to all members, also to those that the environment failed."""
    broken_rows = rows()
    broken_rows[1]["metadata"] = {"break": "reset", "how": "world", "odd": True}
    run = start(
        broken_rows,
        group_rm=True,
        custom_rm_path=f"{__name__}.five",
        custom_reward_post_process_path="agentrl.slime.post_process_rewards",
    )
    samples, data, _ = run.train()
    failed = [sample.status == host.Status.FAILED for sample in samples]
    assert sum(failed) == 1
    assert data["raw_reward"] == [0.0 if one else 5.0 for one in failed]


async def five(args: Any, samples: list[Any], **kwargs: Any) -> list[float]:
    return [5.0] * len(samples)


STOCK_FILTER = ".rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


@pytest.mark.path("fan-out")
def test_fan_out(host, quiz):
    host.need(host.has("rollout_id"), "rollout_id, so no fan-out")
    run = quiz(custom_reward_post_process_path="agentrl.slime.post_process_rewards")
    samples, data, ranks = run.train()
    assert [len([s for s in samples if s.group_index == group]) for group in range(4)] == [2, 4, 6, 8]
    assert len(set(data["rollout_ids"])) == 8, "one for all samples of an episode"
    assert sum(len(rank["tokens"]) for rank in ranks) == 20
    by_rollout = {rid: [i for i, r in enumerate(data["rollout_ids"]) if r == rid] for rid in data["rollout_ids"]}
    for siblings in by_rollout.values():
        trained = [sum(data["loss_masks"][i]) for i in siblings]
        assert all(trained)
        assert {data["rollout_mask_sums"][i] for i in siblings} == {sum(trained)}
        assert len({data["rewards"][i] for i in siblings}) == 1
    for group in range(4):
        means = [data["rewards"][r[0]] for r in by_rollout.values() if samples[r[0]].group_index == group]
        assert len(means) == 2
        assert statistics.mean(means) == pytest.approx(0.0, abs=1e-6)
        assert max(means) > 0.7
    assert len(run.evaluate()["rewards"]) == 8, "evaluation counts each episode once"


@pytest.mark.path("fan-out: refused where the host cannot take it")
@pytest.mark.parametrize("flag", ["partial_rollout", "group_rm", "fully-async", "filter"])
def test_fan_out_is_refused_at_the_first_call(host, quiz, flag):
    host.need(flag != "fully-async" or host.fully_async, "fully-async rollout")
    host.need(flag != "fully-async" or not host.takes_lists, "need of it: its fully-async rollout takes lists")
    args = {
        "partial_rollout": {"partial_rollout": True},
        "group_rm": {"group_rm": True, "custom_rm_path": "agentrl.slime.reward"},
        "fully-async": {"rollout_function_path": host.fully_async_path},
        "filter": {"dynamic_sampling_filter_path": f"{host.name}{STOCK_FILTER}"},
    }[flag]
    run = quiz(custom_reward_post_process_path="agentrl.slime.post_process_rewards", **args)
    with pytest.raises(ConfigError, match=r"thinking: strip"):
        run.train()
