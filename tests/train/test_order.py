"""The order of rollouts and updates: in turn, to the bit; and episodes that never stop, with weights that change in the
middle of their turns, evaluation beside them, and the end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import time
from collections import defaultdict, deque

import pytest
import torch
from rich.console import Console

from agentrl import EngineError
from agentrl.engine import LocalEngine
from agentrl.errors import ConfigError, EngineLostError
from agentrl.models import load_model
from agentrl.monitor import RolloutMetrics
from agentrl.rollout import BugError
from agentrl.train import TrainConfig, Trainer, model_folder, train
from agentrl.train.report import StepReport
from agentrl.trajectory.trajectory import Trajectory
from tests.engine.inside import process_of
from tests.train.played import lines

COPIED = __file__.replace("test_order.py", "copied_engine.py")
TOY = __file__.replace("test_order.py", "toy_env.py")


def quiet():
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def flowing(make_config):
    def make(**values):
        given = {"staleness": 2, "engine": f"{COPIED}:CopiedEngine", "steps": 4, "concurrency": 8}
        return make_config(**{**given, **values})

    return make


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def played(folder):
    return [
        [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]
        for file in sorted((folder / "trajectories").glob("step_*.jsonl"))
    ]


def own_tasks():
    return asyncio.all_tasks() - {asyncio.current_task()}


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
def test_a_run_trains_every_group_once_and_no_token_that_is_too_old(flowing, tmp_path):
    summary = train(flowing(steps=6), console=quiet())
    assert summary.steps == 6
    found = metrics(tmp_path / "run")
    names = [trajectory.session_id for step in played(tmp_path / "run") for trajectory in step]
    assert len(set(names)) == len(names) == 6 * 3 * 4
    for line, step in zip(found, played(tmp_path / "run"), strict=True):
        assert line["token_age_max"] <= 2
        assert sum(line["group_ages"].values()) == 3
        versions = {int(v) for trajectory in step for v in trajectory.weight_versions}
        assert versions <= set(range(line["step"]))
        assert line["sampled_tokens"] == line["trained_tokens"] + sum(line["masked_tokens"].values())
    assert found[0]["group_ages"] == {"0": 3}
    assert any(line["token_age_max"] > 0 for line in found)
    assert {"episodes_per_second", "stragglers", "queues", "prefix_hit_rate", "generate_s", "env_s"} <= set(found[0])


@pytest.mark.thorough
def test_tokens_that_are_too_old_are_masked(flowing):
    config = flowing(steps=4, staleness=1, stale="mask", engine=f"{COPIED}:LateEngine")
    train(config, console=quiet())
    found = metrics(config.out)
    assert all(line["token_age_max"] <= 1 for line in found)
    assert sum(line["masked_tokens"].get("off_policy", 0) for line in found) > 0


class Watched(Trainer):
    """Looks for tasks that are left at the end."""

    def noted(self, step):
        pass

    async def step(self, step):
        report = await super().step(step)
        self.noted(step)
        return report

    async def _close(self, exc):
        await super()._close(exc)
        self.left = [task for task in own_tasks() if "agentrl" in repr(task.get_coro())]


@pytest.mark.thorough
async def test_nothing_is_left_at_the_end(flowing):
    async with Watched(flowing(), console=quiet()) as trainer:
        await trainer.run()
    assert trainer.left == []
    assert trainer.drawer.loop.playing == 0
    assert trainer.engine.requests == 0


@pytest.mark.thorough
async def test_an_evaluation_is_played_beside_the_episodes(flowing, tmp_path):
    config = flowing(steps=5, eval_data=tmp_path / "tasks.jsonl", eval_every=2, eval_tasks=5)
    seen = []
    async with Trainer(config, console=quiet()) as trainer:
        slots, one = trainer.drawer.slots, trainer.drawer.slots.one

        def noted(use="train"):
            seen.extend([(slots.reserved, trainer.drawer.loop.playing)] if use == "eval" else [])
            return one(use)

        slots.one = noted
        await trainer.run()
        assert slots.reserved == 0
    beside = [playing for reserved, playing in seen if reserved == 2]
    assert len(beside) == 2 * 5
    assert max(beside) > 0
    found = metrics(tmp_path / "run")
    assert [line["eval_step"] for line in found if "eval_step" in line] == [2, 4]
    assert all(line["eval_reward_mean"] > 0 for line in found if "eval_step" in line)
    assert {result.name for result in trainer.folder.results} >= {"start", "final"}


async def test_a_bug_ends_the_run(flowing):
    with pytest.raises(BugError, match="oops"):
        async with Trainer(flowing(env=f"{TOY}:Buggy"), console=quiet()) as trainer:
            await trainer.run()


@pytest.mark.thorough
async def test_an_engine_that_dies_leaves_a_checkpoint(flowing, tmp_path, monkeypatch):
    original = LocalEngine.generate

    async def dies(self, *args, **kwargs):
        if self.weight_version == "2":
            raise EngineLostError("the engine is gone")
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(LocalEngine, "generate", dies)
    config = flowing(steps=9)
    with pytest.raises(EngineLostError, match="gone"):
        async with Trainer(config, console=quiet()) as trainer:
            await trainer.run()
    done = len(metrics(config.out))
    assert 2 <= done < 9
    assert (config.out / "checkpoints" / f"step_{done:06d}").exists()
    monkeypatch.setattr(LocalEngine, "generate", original)
    async with Trainer(config, resume=True, console=quiet()) as trainer:
        await trainer.run()
    assert [line["step"] for line in metrics(config.out)] == list(range(1, 10))
    names = [trajectory.session_id for step in played(config.out) for trajectory in step]
    assert len(set(names)) == len(names) == 9 * 3 * 4


@pytest.mark.thorough
@pytest.mark.parametrize("ends", ["engine", "ctrl_c"])
async def test_a_step_whose_weights_the_engine_does_not_get_is_trained_once(flowing, monkeypatch, ends):
    """The engine dies while it gets the weights of step 3, or the run is interrupted then."""
    config, updates, original = flowing(steps=6), [], LocalEngine.update

    class Counting(Trainer):
        def update(self, groups, step):
            updates.append(step)
            return super().update(groups, step)

    async def run(**values):
        async with Counting(config, console=quiet(), **values) as trainer:
            await trainer.run()

    async def fails(self, model, version):
        if version == "3" and ends == "engine":
            raise EngineLostError("the engine is gone")
        if version == "3":
            running.cancel()
            await asyncio.sleep(0)
        await original(self, model, version)

    monkeypatch.setattr(LocalEngine, "update", fails)
    running = asyncio.create_task(run())
    with pytest.raises(EngineLostError if ends == "engine" else asyncio.CancelledError):
        await running
    assert [line["step"] for line in metrics(config.out)] == updates == [1, 2, 3]
    assert (config.out / "checkpoints" / "step_000003").exists()
    monkeypatch.setattr(LocalEngine, "update", original)
    await run(resume=True)
    assert [line["step"] for line in metrics(config.out)] == updates == [1, 2, 3, 4, 5, 6]
    names = [trajectory.session_id for step in played(config.out) for trajectory in step]
    assert len(set(names)) == len(names) == 6 * 3 * 4


@pytest.mark.thorough
async def test_ctrl_c_ends_every_episode(flowing):
    config = flowing(steps=50)

    async def run():
        async with Watched(config, console=quiet()) as trainer:
            trainers.append(trainer)
            trainer.noted = lambda step: second.set() if step == 2 else None
            await trainer.run()

    trainers, second = [], asyncio.Event()
    running = asyncio.create_task(run())
    await second.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert trainers[0].left == []
    assert list((config.out / "checkpoints").glob("step_*"))


def stopping(moment):
    """A Trainer that gets Ctrl-C in its third step: in the update, or while it waits for the rollout."""

    class Stopping(Trainer):
        async def step(self, step):
            self.task = asyncio.current_task()
            return await super().step(step)

        async def collect(self, step):
            if moment == "rollout" and step == 3:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
            return await super().collect(step)

        def update(self, groups, step):
            if moment == "update" and step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                while not self.task.cancelling():
                    time.sleep(0.001)
            return super().update(groups, step)

    return Stopping


@pytest.mark.thorough
@pytest.mark.parametrize(("moment", "done"), [("rollout", 2), ("update", 3)])
def test_ctrl_c_leaves_a_checkpoint_and_no_group_is_trained_twice(flowing, moment, done):
    config, console = flowing(steps=5), quiet()
    with pytest.raises(KeyboardInterrupt):
        train(config, trainer=stopping(moment), console=console)
    assert f"checkpoint written after step {done}\n" in console.file.getvalue()
    assert [line["step"] for line in metrics(config.out)] == list(range(1, done + 1))

    train(config, resume=True, console=quiet())
    assert [line["step"] for line in metrics(config.out)] == [1, 2, 3, 4, 5]
    assert max(line["token_age_max"] for line in metrics(config.out)) <= 2
    names = [trajectory.session_id for step in played(config.out) for trajectory in step]
    assert len(set(names)) == len(names) == 5 * 3 * 4


@pytest.mark.thorough
async def test_an_engine_that_dies_during_an_update(make_config):
    """The process that the engine named local is in a run with staleness, and its end."""

    class Dies(Trainer):
        def update(self, groups, step):
            if step == 2 and not self._resume:
                os.kill(process_of(self.engine.engine).pid, signal.SIGKILL)
            return super().update(groups, step)

    config, console = make_config(staleness=1, steps=4), quiet()
    with pytest.raises(
        EngineLostError, match=r"the engine's process ended by signal SIGKILL; the log .*engine.log is empty"
    ):
        async with Dies(config, console=console) as trainer:
            await trainer.run()
    assert "checkpoint written after step 2\n" in console.file.getvalue()
    assert [line["step"] for line in lines(config.out)] == [1, 2]
    async with Dies(config, resume=True, console=quiet()) as trainer:
        await trainer.run()
    assert max(line["token_age_max"] for line in lines(config.out)) <= 1
    assert "ended with status 0" in str(process_of(trainer.engine.engine).requests.ended.result())


def test_an_engine_without_versions_is_told(flowing):
    with pytest.raises(
        EngineError, match="staleness needs the version of each token's weights, and the engine reports ''"
    ):
        train(flowing(engine=f"{COPIED}:NamelessEngine"), console=quiet())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"engine": "agentrl.engine.local:LocalEngine"}, "LocalEngine cannot play while the weights change, unless"),
        ({"engine": {"kind": "sglang", "sleep": True}}, "engine_config.sleep is true, and with staleness the engine"),
    ],
)
def test_an_engine_that_cannot_play_meanwhile_is_refused_in_one_line(make_config, tmp_path, values, says):
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


def test_a_run_cannot_change_its_staleness(flowing):
    train(flowing(steps=1), console=quiet())
    with pytest.raises(ConfigError, match="--resume: staleness was 2 and is now 3"):
        train(flowing(staleness=3), resume=True, console=quiet())


@pytest.mark.thorough
def test_groups_that_teach_nothing_are_replaced(flowing, tmp_path):
    train(flowing(env=f"{TOY}:Uneven", refill=3, steps=3), console=quiet())
    for line, step in zip(metrics(tmp_path / "run"), played(tmp_path / "run"), strict=True):
        assert line.get("dropped_no_spread", 0) == line["replaced_groups"]
        if line["replaced_groups"] < 9:
            assert all(int(trajectory.task.id) % 2 for trajectory in step)
    assert sum(line["replaced_groups"] for line in metrics(tmp_path / "run")) > 0


@pytest.mark.thorough
def test_filters_replace_groups_and_their_reasons_are_counted(flowing, tmp_path):
    """A function that keeps the tasks whose number is a multiple of four."""
    (tmp_path / "own.py").write_text("def fourth(group):\n    return int(group[0].task.id) % 4 == 0 or 'other'\n")
    config = flowing(refill=9, filters=[f"{tmp_path / 'own.py'}:fourth"], steps=2)
    train(config, console=quiet())
    assert all(int(trajectory.task.id) % 4 == 0 for step in played(config.out) for trajectory in step)
    assert sum(line.get("dropped_other", 0) for line in metrics(config.out)) > 0


@pytest.mark.thorough
def test_groups_with_too_few_valid_episodes_are_dropped(flowing, tmp_path):
    train(flowing(env=f"{TOY}:Flaky", failures={"again": 0, "least": 2}, steps=4), console=quiet())
    assert all(trajectory.task.id != "1" for step in played(tmp_path / "run") for trajectory in step)
    assert sum(line.get("dropped_env_failure", 0) for line in metrics(tmp_path / "run")) > 0


def test_a_least_above_the_group_size_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="exceeds group_size"):
        TrainConfig.make(env="x.py:X", out=tmp_path, failures={"least": 9})


class OnlyBeside(Trainer):
    """Evaluates between steps only: an evaluation before or after them has nobody to give it up."""

    async def _evaluate_and_keep(self, name):
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("waiter", ["step 3", "the evaluation"])
async def test_no_step_and_no_checkpoint_waits_for_ever_for_what_hangs(flowing, tmp_path, monkeypatch, caplog, waiter):
    late_s = "agentrl.rollout.play.in_flight._LATE_S"
    for name, seconds in (
        ("rollout.loop.group_loop.LOOK_S", 0.1),
        ("train.async_order.LOOK_S", 0.1),
        ("rollout.play.waiting.EVERY_S", 0.2),
    ):
        monkeypatch.setattr(f"agentrl.{name}", seconds)
    monkeypatch.setattr("agentrl.rollout.play.in_flight.DURATIONS", defaultdict(deque))

    class LateOnceListed(logging.Handler):
        """What hangs is late once the warning has listed it: before, neither a busy machine nor a fast one is."""

        def emit(self, record):
            if f"{waiter} waits for" in record.getMessage():
                monkeypatch.setattr(late_s, 0.5)

    handler = LateOnceListed()
    monkeypatch.setattr(logging.getLogger("agentrl"), "handlers", [*logging.getLogger("agentrl").handlers, handler])
    evaluates = waiter == "the evaluation"
    config = flowing(
        env=f"{TOY}:{'HangingEvaluation' if evaluates else 'Hanging'}",
        steps=3,
        staleness=1,
        prompts_per_step=1,
        **({"eval_data": tmp_path / "tasks.jsonl", "eval_every": 1, "eval_tasks": 4} if evaluates else {}),
    )
    async with OnlyBeside(config, console=quiet()) as trainer, asyncio.timeout(120):
        summary = await trainer.run()
    assert summary.steps == 3
    assert len(metrics(tmp_path / "run")) == 3
    lines = [record.getMessage() for record in caplog.records]
    assert any(f"{waiter} waits for" in line and "(reset for" in line for line in lines)
    if evaluates:
        assert "of task '1'" in caplog.text
        assert "the evaluation of step 1 is given up" in caplog.text
    else:
        assert any("another may begin in its place" in line for line in lines)
