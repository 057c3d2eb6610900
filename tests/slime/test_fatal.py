"""What the configuration does not allow ends the run in every rollout of slime's, with one line."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import pytest

from agentrl import ConfigError, adapt
from agentrl.slime import fatal, post_process_rewards
from agentrl.slime.fatal import NoReward
from tests.slime.questions import PARAMS, question

FULLY_ASYNC = {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(fatal, "_said", set())


@pytest.fixture
def broken_env(tmp_path):
    def write(text):
        file = tmp_path / "broken_env.py"
        file.write_text(f"from agentrl import Env\n{text}\n")
        return f"{file}:Broken"

    return write


IMPORTS = {
    "a variable that is not set": "import os\nos.environ['MISSING_HERE']",
    "a name that a module lacks": "from json import nosuch",
    "any exception": "raise RuntimeError('no licence')",
    "an exit": "raise SystemExit(3)",
    "no class": "",
}


@pytest.mark.parametrize("text", IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("evaluation", [False, True])
async def test_an_import_that_fails_ends_the_run(Sample, make_args, broken_env, caplog, text, evaluation):
    for _ in range(2):
        with pytest.raises(ConfigError) as excinfo:
            await adapt(make_args(env=broken_env(text)), question(Sample), PARAMS, evaluation=evaluation)
    assert "broken_env.py" in str(excinfo.value)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in said] == [f"the run cannot go on: {excinfo.value}"], "once"
    assert "\n" not in said[0].getMessage()


SHARE = """
class Broken(Env):
    @classmethod
    def share(cls, config):
        return config["nothing"]
    def step(self, action): ...
"""


async def test_a_bug_in_share_ends_the_run(Sample, make_args, serve, broken_env):
    async with serve() as (_, url):
        with pytest.raises(ConfigError, match=r"share.*KeyError"):
            await adapt(make_args(url, env=broken_env(SHARE)), question(Sample), PARAMS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"env": "nowhere:Env"}, "no module 'nowhere'"),
        ({"limits": {"turn": 1}}, "unknown key limits.turn"),
        ({"thinking": "strip"}, "remove --rollout-function-path"),
        ({"reward": "json:nothing"}, "has no 'nothing'"),
    ],
)
async def test_a_rollout_that_swallows_the_error_gets_samples_that_end_the_run(Sample, make_args, config, message):
    args = make_args(args=FULLY_ASYNC, **config)
    with pytest.raises(ConfigError, match=message):
        await adapt(args, question(Sample, group_index=0, index=0), PARAMS)
    sample = await adapt(args, question(Sample, group_index=1, index=1), PARAMS)
    assert (sample.status, sample.remove_sample, sample.loss_mask) == (Sample.Status.FAILED, True, [0])
    assert message in sample.metadata["agentrl"]["failure"]["error"]
    for read in (float, round, lambda r: r - 1.0, lambda r: r["key"], lambda r: r < 1):
        with pytest.raises(ConfigError, match=message):
            read(sample.reward)
    args.advantage_estimator, args.rewards_normalization = "grpo", True
    with pytest.raises(ConfigError, match=message):
        post_process_rewards(args, [sample])


async def test_a_bug_outside_of_the_episode_ends_the_run_as_well(Sample, make_args, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr("agentrl.slime.adapt.from_sample", broken)
    args = make_args()
    with pytest.raises(RuntimeError, match="a bug"):
        await adapt(args, question(Sample), PARAMS)
    sample = await adapt(args, question(Sample), PARAMS)
    with pytest.raises(ConfigError, match="RuntimeError: a bug"):
        float(sample.reward)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert said[0].exc_info, "where it happened"


async def test_samples_that_are_dropped_unread_end_in_the_error_again(Sample, make_args, monkeypatch):
    monkeypatch.setattr(fatal, "_PAUSE_S", 0.0)
    args = make_args(env="nowhere:Env", args={"rollout_batch_size": 2, "n_samples_per_prompt": 3})
    raised = 0
    for _ in range(1 + 2 * 2 * 3 + fatal.SWALLOWED):
        try:
            await adapt(args, question(Sample), PARAMS)
        except ConfigError:
            raised += 1
    assert raised == 1 + fatal.SWALLOWED
    with pytest.raises(fatal.EndedRun, match="no module 'nowhere'"):  # which `except Exception` does not swallow
        await adapt(args, question(Sample), PARAMS)


async def test_another_configuration_is_another_run(Sample, make_args, serve):
    async with serve() as (_, url):
        args = make_args(url)
        right, args.agentrl = args.agentrl, {"env": "nowhere:Env"}
        with pytest.raises(ConfigError, match="nowhere"):
            await adapt(args, question(Sample), PARAMS)
        args.agentrl = right
        sample = await adapt(args, question(Sample), PARAMS)
    assert sample.status is Sample.Status.COMPLETED


def test_the_reward_that_cannot_be_read_can_be_copied_and_dumped():
    copied = pickle.loads(pickle.dumps(copy.deepcopy(NoReward("no environment"))))
    with pytest.raises(ConfigError, match="no environment"):
        float(copied)


@pytest.mark.parametrize("flags", [{}, {"reward_key": "score"}])
def test_it_is_written_as_a_plain_mapping_that_is_no_reward_either(Sample, make_args, flags):
    """slime 0.4 writes samples as tagged JSON (data/codec.py), and refuses objects of other classes."""
    reward = NoReward("no environment")
    assert isinstance(reward, dict)
    read = dict(json.loads(json.dumps(reward)).items())
    assert read == {"error": "no environment"}
    args = make_args(args={**flags, "advantage_estimator": "grpo", "rewards_normalization": True})
    with pytest.raises(ConfigError, match=r"no environment.*holds no finite number"):
        post_process_rewards(args, [Sample(index=0, group_index=0, reward=read)])
