"""Rollouts that are played while the learner learns: in which order, from which weights, and what a failure leaves."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from agentrl import EngineError
from agentrl.errors import ConfigError, EngineLostError
from agentrl.models import load_model
from agentrl.monitor import RolloutMetrics
from agentrl.rollout import BugError
from agentrl.train import TrainConfig, Trainer, model_folder, train
from agentrl.train.report import StepReport
from agentrl.trajectory.trajectory import Trajectory
from tests.train.test_going_on import lines

COPIED = __file__.replace("test_overlap.py", "copied_engine.py")


def quiet():
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def overlapped(make_config):
    """A run with staleness, on an engine that starts at once."""

    def make(staleness=1, engine="CopiedEngine", **values):
        return make_config(**{"staleness": staleness, "engine": f"{COPIED}:{engine}", "steps": 4, **values})

    return make


def clocked(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_waits(folder):
    return [{key: value for key, value in line.items() if not key.endswith("_wait_s")} for line in lines(folder)]


def versions(folder):
    """Of each step, the versions of the weights that sampled its tokens."""
    found = []
    for file in sorted((folder / "trajectories").glob("step_*.jsonl")):
        played = [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]
        found.append({version for trajectory in played for version in trajectory.weight_versions})
    return found


def weights(folder):
    return load_model(str(model_folder(folder))).state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Before(Trainer):
    """The step as it was before there was another order."""

    async def step(self, step):
        await self.handover.give()
        groups = await self.collect(step)
        await self.handover.rest()
        self.handover.compare([t for group in groups for t in group], self.numerics, step, self._warn)
        metrics = RolloutMetrics.of_groups(groups)
        update = self.update(groups, step)
        update.pop("zero_advantage_groups")
        drawn = self._drawn.pop(step).metrics
        return StepReport(step, metrics, {**update, **drawn}, 1.0, 1.0, 1.0)


@pytest.mark.thorough
def test_staleness_0_is_the_order_that_was_there_before(make_config, tmp_path):
    train(make_config(out=tmp_path / "now", steps=3), console=quiet())
    train(make_config(out=tmp_path / "before", steps=3), trainer=Before, console=quiet())
    assert lines(tmp_path / "now") == lines(tmp_path / "before")
    assert equal(weights(tmp_path / "now"), weights(tmp_path / "before"))
    assert not any("token_age" in key or "wait" in key for line in lines(tmp_path / "now") for key in line)


@pytest.mark.thorough
def test_each_rollout_is_one_step_ahead(overlapped, tmp_path):
    console = quiet()
    summary = train(overlapped(), console=console)
    assert summary.steps == 4
    assert versions(tmp_path / "run") == [{"0"}, {"0"}, {"1"}, {"2"}]
    found = clocked(tmp_path / "run")
    assert [line["token_age_max"] for line in found] == [0, 1, 1, 1]
    assert [line["token_age_mean"] for line in found] == [0, 1, 1, 1]
    for line in found:
        assert min(line["trainer_wait_s"], line["engine_wait_s"], line["hand_over_s"]) >= 0
        assert line["trainer_wait_s"] + line["train_s"] <= line["seconds"]
    assert found[0]["trainer_wait_s"] > 0 == found[0]["engine_wait_s"]
    assert "trainer_waits_s" in console.file.getvalue()
    assert "engine_waits_s" in console.file.getvalue()
    assert "  age 1 " in console.file.getvalue()


@pytest.mark.thorough
def test_a_run_with_staleness_1_repeats_to_the_bit(overlapped, tmp_path):
    for name in ("one", "two"):
        train(overlapped(out=tmp_path / name), console=quiet())
    assert without_waits(tmp_path / "one") == without_waits(tmp_path / "two")
    assert equal(weights(tmp_path / "one"), weights(tmp_path / "two"))


class Watched(Trainer):
    """No rollout but the first begins before an update, and no update but the last ends before the next rollout."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.learning, self.together = threading.Event(), set()

    async def collect(self, step):
        if step > 1:
            await asyncio.to_thread(self.learning.wait)
        groups = await super().collect(step)
        self.together.add(step)
        return groups

    def update(self, groups, step):
        self.learning.set()
        while step < self.config.steps and step + 1 not in self.together:
            time.sleep(0.001)
        self.learning.clear()
        return super().update(groups, step)


@pytest.mark.thorough
async def test_rollouts_are_played_while_the_learner_learns(overlapped):
    async with Watched(overlapped(), console=quiet()) as trainer:
        await trainer.run()
    assert trainer.together == {1, 2, 3, 4}


@pytest.mark.thorough
@pytest.mark.parametrize("slow", ["learner", "engine"])
def test_no_token_is_older_than_the_bound_whichever_half_is_longer(overlapped, tmp_path, slow):
    class Slow(Trainer):
        played = learned = 0

        async def collect(self, step):
            while slow == "engine" and self.learned < step - 1:
                await asyncio.to_thread(time.sleep, 0.01)
            groups = await super().collect(step)
            self.played = step
            return groups

        def update(self, groups, step):
            while slow == "learner" and self.played < min(step + 3, 6):
                time.sleep(0.01)
            found = super().update(groups, step)
            self.learned = step
            return found

    train(overlapped(staleness=3, steps=6), trainer=Slow, console=quiet())
    ages = [line["token_age_max"] for line in lines(tmp_path / "run")]
    assert max(ages) == (3 if slow == "learner" else 1)
    assert ages[0] == 0


@pytest.mark.thorough
def test_tokens_that_are_too_old_are_masked(overlapped, tmp_path):
    train(overlapped(engine="LateEngine"), console=quiet())
    masked = [line["masked_tokens"] for line in lines(tmp_path / "run")]
    assert masked[:2] == [{}, {}], "version 0 is young enough there"
    for line in lines(tmp_path / "run")[2:]:
        assert 0 < line["masked_tokens"]["off_policy"] < line["sampled_tokens"]
        assert line["trained_tokens"] + line["masked_tokens"]["off_policy"] == line["sampled_tokens"]
        assert line["token_age_max"] == 1


@pytest.mark.thorough
def test_evaluations_have_the_weights_of_their_step(overlapped, tmp_path):
    class Evaluated(Trainer):
        async def evaluate(self, name):
            found = await super().evaluate(name)
            seen[name] = {version for trajectory in found.trajectories for version in trajectory.weight_versions}
            return found

    seen = {}
    config = overlapped(eval_every=1, eval_data=tmp_path / "tasks.jsonl", eval_tasks=2)
    train(config, trainer=Evaluated, console=quiet())
    steps = {f"step_{step:06d}": {str(step)} for step in (1, 2, 3)}
    assert seen == {"start": {"0"}, **steps, "final": {"4"}}
    assert versions(tmp_path / "run") == [{"0"}, {"0"}, {"1"}, {"2"}]


def stopping(at):
    """A Trainer that gets Ctrl-C in its third step: in the update, while it waits for the rollout, or in between."""

    class Stopping(Trainer):
        async def step(self, step):
            self.task = asyncio.current_task()
            return await super().step(step)

        async def collect(self, step):
            if at == "rollout" and step == 3:
                await asyncio.sleep(0.2)  # the second update is over, and the third step waits
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
            return await super().collect(step)

        def update(self, groups, step):
            if at == "update" and step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                while not self.task.cancelling():
                    time.sleep(0.001)
            return super().update(groups, step)

    return Stopping


@pytest.mark.thorough
@pytest.mark.parametrize(("at", "done"), [("rollout", 2), ("update", 3)])
def test_ctrl_c_leaves_a_checkpoint_and_plays_again_what_was_in_flight(overlapped, tmp_path, at, done):
    config, console = overlapped(steps=5), quiet()
    with pytest.raises(KeyboardInterrupt):
        train(config, trainer=stopping(at), console=console)
    assert f"checkpoint written after step {done}\n" in console.file.getvalue()
    assert [line["step"] for line in lines(config.out)] == list(range(1, done + 1))

    train(config, resume=True, console=quiet())
    train(overlapped(steps=5, out=tmp_path / "straight"), console=quiet())
    assert [line["step"] for line in lines(config.out)] == [1, 2, 3, 4, 5]
    sampled_by = versions(config.out)[done]
    assert sampled_by <= {str(done - 1), str(done)}, "what had ended is in the journal, the rest has the newest weights"
    assert max(line["token_age_max"] for line in lines(config.out)) == 1
    assert tasks(config.out) == tasks(tmp_path / "straight")


def tasks(folder):
    """The ids of the tasks of each step."""
    files = sorted((folder / "trajectories").glob("step_*.jsonl"))
    return [[json.loads(line)["task"]["id"] for line in file.read_text().splitlines()] for file in files]


@pytest.mark.thorough
def test_a_bug_in_the_env_ends_the_run_after_the_update(overlapped):
    class Buggy(Trainer):
        async def collect(self, step):
            if step == 3:
                self.drawer.rollout = replace(self.drawer.rollout, reward=oops)
            return await super().collect(step)

    def oops(trajectory):
        raise KeyError("oops")

    config = overlapped()
    with pytest.raises(BugError, match="KeyError: 'oops'"):
        train(config, trainer=Buggy, console=quiet())
    assert [line["step"] for line in lines(config.out)] == [1, 2]
    train(config, resume=True, console=quiet())
    assert [line["step"] for line in lines(config.out)] == [1, 2, 3, 4]


@pytest.mark.thorough
async def test_an_engine_that_dies_during_an_update(make_config):
    """The process that the engine named local is in a run with staleness, and its end."""

    class Dies(Trainer):
        def update(self, groups, step):
            if step == 2 and not self._resume:
                os.kill(self.engine._process.pid, signal.SIGKILL)
            return super().update(groups, step)

    config, console = make_config(staleness=1, steps=4), quiet()
    with pytest.raises(
        EngineLostError, match=r"the engine's process ended with status -9; the log .*engine.log is empty"
    ):
        async with Dies(config, console=console) as trainer:
            await trainer.run()
    assert "checkpoint written after step 2\n" in console.file.getvalue()
    assert [line["step"] for line in lines(config.out)] == [1, 2]
    async with Dies(config, resume=True, console=quiet()) as trainer:
        await trainer.run()
    assert [line["token_age_max"] for line in lines(config.out)] == [0, 1, 0, 1]
    assert "ended with status 0" in str(trainer.engine._process.requests.ended.result())


def test_an_engine_without_versions_is_told(overlapped):
    with pytest.raises(
        EngineError, match="staleness needs the version of each token's weights, and the engine reports ''"
    ):
        train(overlapped(engine="NamelessEngine"), console=quiet())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"engine": "agentrl.engine.local:LocalEngine"}, "LocalEngine cannot play while the weights change, unless"),
        ({"engine": {"kind": "sglang", "sleep": True}}, "engine_config.sleep is true, and with staleness the engine"),
    ],
)
def test_an_engine_that_cannot_overlap_is_refused_in_one_line(make_config, tmp_path, values, says):
    with pytest.raises(ConfigError) as error:
        train(make_config(staleness=1, **values), console=quiet())
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_importance_weights_are_on_unless_set(make_config):
    assert make_config().tis_clip is None
    assert make_config(staleness=1).tis_clip == 2.0
    assert make_config(staleness=1, tis_clip=None).tis_clip is None
    assert TrainConfig.parse("it", make_config(staleness=1).model_dump(mode="json")).tis_clip == 2.0
    with pytest.raises(ConfigError, match="staleness"):
        make_config(staleness=-1)


def test_a_run_cannot_change_its_staleness(overlapped, make_config):
    train(overlapped(steps=1), console=quiet())
    with pytest.raises(ConfigError, match="--resume: staleness was 1 and is now 2"):
        train(overlapped(staleness=2), resume=True, console=quiet())
