"""The door to TRL, proved in TRL's own GRPOTrainer: what its batch holds is what agentrl's episodes are."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys

import pytest

from agentrl import ConfigError, EpisodeOptions, Limits
from agentrl.errors import BugError
from agentrl.hosts.equality import differences
from agentrl.hosts.export import script
from agentrl.hosts.trl import VERSION, TRLRollouts
from agentrl.models import load_model, load_tokenizer
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, BreaksAtReset, Buggy, Masks, TwoTools, Weather, odd
from tests.hosts.hosting import Policy
from tests.house import ROOT

trl = need("trl")

from tests.hosts.playing.trl import GROUP, LENGTH, Recorded, trainer  # noqa: E402

LIMITS = {"turns": 6, "max_tokens_per_turn": 40}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of TRL, accelerate and datasets
]


def test_the_version():
    assert trl.__version__ == VERSION, "the door is written for another version: read TRL's source again"


async def all_differences(host, cls, renderer, reward=None, **limits):
    options = EpisodeOptions(limits=Limits(**{"tokens": LENGTH, **LIMITS, **limits}))
    return [
        f"{index}: {difference}"
        for index, episode in enumerate(host.hosted)
        for difference in await differences(episode, cls(), renderer, options=options, reward=reward)
    ]


@pytest.mark.parametrize("cls", [Weather, Masks, TwoTools, Breaks])
async def test_each_row_is_the_episode(cls, renderer, tmp_path):
    """Right and wrong calls, a world that breaks, answers that are too long."""
    rollouts = Recorded(cls, limits=LIMITS, policy=Policy(renderer))
    host = trainer(rollouts, tmp_path)
    host.train()
    assert await all_differences(host, cls, renderer) == []
    rewards = [episode.reward for episode in host.hosted]
    lengths = {len(episode.turns) for episode in host.hosted}
    assert len(lengths) > 2
    assert 0 < sum(filter(None, rewards)) < len(rewards)
    assert (None in rewards) is (cls is Breaks)
    assert host.batch["advantages"].tolist() == pytest.approx([*advantages(rewards)], abs=1e-4)
    masked = [token for episode in host.hosted for token in untrained(episode)]
    assert bool(masked) is (cls in (Masks, Breaks))
    (failed,) = (line["agentrl/failed"] for line in host.state.log_history if "agentrl/failed" in line)
    assert failed == pytest.approx(rewards.count(None) / len(rewards))


def untrained(episode):
    """The sampled tokens that are not trained."""
    (row,) = episode.rows
    for turn in episode.turns:
        places = range(len(turn.input_ids), len(turn.input_ids) + len(turn.tokens))
        yield from (row.tokens[place] for place in places if not row.loss_mask[place])


async def test_a_batch_whose_episodes_all_failed_trains_nothing(renderer, tmp_path):
    host = trainer(Recorded(BreaksAtReset, policy=Policy(renderer)), tmp_path, max_steps=2)
    before = host.model.lm_head.weight.detach().clone()
    host.train()
    assert {episode.reward for episode in host.hosted} == {None}
    assert await all_differences(host, BreaksAtReset, renderer) == []
    assert before.equal(host.model.lm_head.weight)


def advantages(rewards):
    """Each group's rewards without the mean of the group, in units of its spread; failures are left out, and get 0."""
    for start in range(0, len(rewards), GROUP):
        group = rewards[start : start + GROUP]
        valid = [reward for reward in group if reward is not None]
        spread = statistics.stdev(valid) if len(valid) > 1 else 0.0
        yield from (0.0 if reward is None else (reward - statistics.mean(valid)) / (spread + 1e-4) for reward in group)


async def test_the_engine_samples_from_the_weights_of_each_step(renderer, tmp_path):
    """LocalEngine on the trainer's own module: TRL's own forward pass gives the log-probs of sampling again, also after
    an update. The model is then in train mode again, and evaluation samples, too."""
    rollouts = Recorded(Weather, limits={**LIMITS, "max_tokens_per_turn": 10}, reward="tests.hosts.envs:odd")
    host = trainer(rollouts, tmp_path, max_steps=4, num_iterations=2, learning_rate=0.05, lr_scheduler_type="constant")
    before = host.model.lm_head.weight.detach().clone()
    host.train()
    assert host.model.training
    assert not before.equal(host.model.lm_head.weight)
    assert len(host.batches) == 2
    for batch in host.batches:
        trained = batch["tool_mask"].bool() & batch["completion_mask"].bool()
        difference = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"])[trained].abs()
        assert trained.sum() > 16
        assert difference.max() < 1e-4
    assert await all_differences(host, Weather, renderer, odd, max_tokens_per_turn=10) == []
    host.evaluate()
    assert {episode.task.split for episode in host.hosted} == {"eval"}
    assert await all_differences(host, Weather, renderer, odd, max_tokens_per_turn=10) == []


async def test_what_cannot_work_is_said_at_once(renderer, tmp_path):
    with pytest.raises(ConfigError, match="leave out thinking: strip"):
        TRLRollouts(Weather, thinking="strip")
    with pytest.raises(ConfigError, match=r"leave out limits\.compact_at"):
        TRLRollouts(Weather, limits={"compact_at": 500})
    with pytest.raises(ConfigError, match="the same object as rollout_func"):
        TRLRollouts.reward(["sunny"])
    rollouts = Recorded(Buggy, limits=LIMITS, policy=Policy(renderer))
    host = trainer(rollouts, tmp_path)
    with pytest.raises(ConfigError, match="is no id of a task"):
        rollouts(["Weather in the city?"], host)
    with pytest.raises(BugError, match="KeyError"):
        host.train()
    host.args.min_p = 0.5
    with pytest.raises(ConfigError, match="leave out repetition_penalty, min_p"):
        rollouts(["train-1"], host)
    assert Buggy.open == 0


async def test_two_envs_in_one_process(renderer, tmp_path):
    """The trainers share the process and the tokenizer, and each row is an episode of its own trainer's Env."""
    classes = (Weather, TwoTools)
    for cls in classes:
        cls.open = 0
    hosts = [
        trainer(Recorded(cls, limits=LIMITS, policy=Policy(renderer)), tmp_path / cls.__name__, max_steps=2)
        for cls in classes
    ]
    await asyncio.gather(*(asyncio.to_thread(host.train) for host in hosts))
    for host, cls in zip(hosts, classes, strict=True):
        assert len(host.played) == 32
        assert await all_differences(host, cls, renderer) == []
        assert cls.open == 0
    prompts = [{len(episode.turns[0].input_ids) for episode in host.played} for host in hosts]
    assert max(prompts[0]) < min(prompts[1]), "each prompt has the tools of its own Env"


INTERRUPTED = """
import asyncio, sys
from agentrl.hosts.trl import TRLRollouts
from tests.hosts.envs import Weather
from tests.hosts.playing.trl import trainer

class Told(Weather):
    async def reset(self, task):
        prompt = super().reset(task)
        if sys.argv[1] == "in an Env":
            print("ready", flush=True)
            await asyncio.Event().wait()
        return prompt

    async def close(self):
        await asyncio.sleep(0.05)  # as a sandbox's end takes a moment
        super().close()

class Rollouts(TRLRollouts):
    def turns(self, row):
        if sys.argv[1] == "after a step":
            print("ready", flush=True)
        return []

    def _serving(self, host):
        if sys.argv[1] == "while it samples":
            host.model.register_forward_hook(lambda *_: print("ready", flush=True))
        return super()._serving(host)

if __name__ == "__main__":
    host = trainer(Rollouts(Told), sys.argv[2], max_steps=1000)
    try:
        host.train()
    except KeyboardInterrupt:
        print("interrupted with", Told.open, "open", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["in an Env", "while it samples", "after a step"])
def test_a_run_that_is_interrupted_leaves_no_env_open(place, tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, place, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as host:
        assert any(line == "ready\n" for line in host.stdout)
        host.send_signal(signal.SIGINT)
        assert "interrupted with 0 open\n" in [*host.stdout]
    assert host.returncode == 0


@pytest.mark.thorough
def test_the_exported_script_trains(tmp_path):
    """As a user runs it, but for the number of steps and the CPU."""
    for part in (load_model("tiny"), load_tokenizer("tiny")):
        part.save_pretrained(tmp_path / "model")
    text = script("tests.hosts.envs:Weather", "trl", model=str(tmp_path / "model"), file="f", settings={})
    text = text.replace("max_steps=100", 'max_steps=2, use_cpu=True, bf16=False, report_to="none"')
    text = text.replace("max_completion_length=1024", "max_completion_length=64")
    (tmp_path / "train_trl.py").write_text(text)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "train_trl.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert (tmp_path / "runs" / "trl" / "model.safetensors").exists()
