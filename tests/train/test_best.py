"""The checkpoint of the best evaluation stays, and `best` in the run folder stands for it."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from agentrl import Task, Trajectory
from agentrl._util.files import damage
from agentrl.cli.models import run_config
from agentrl.errors import ConfigError
from agentrl.models import load_model
from agentrl.rollout.play.evaluate import Evaluation
from agentrl.train import Trainer, model_folder, train
from agentrl.train.key_types import Keep
from agentrl.train.run_folder import RunFolder, step_name, weights_of
from agentrl.view.sources import open_source
from tests.cli.conftest import Command
from tests.train.toy_runs import TOY, lines, quiet


def evaluation(reward):
    trajectory = Trajectory(Task(id="1"))
    trajectory.reward = reward
    return Evaluation.of([trajectory])


@pytest.fixture
def folder(tmp_path, make_config):
    """A run folder with checkpoints of steps 1 to 5, of which step 2 was the best."""
    folder = RunFolder(tmp_path / "run")
    folder.create(make_config())
    for step, reward in enumerate((0.25, 0.75, 0.5, 0.0, 0.0), 1):
        evaluate(folder, step, reward)
        folder.save_checkpoint(step, lambda path: (path / "config.json").write_text("{}"))
    yield folder
    folder.unlock()


def evaluate(folder, step, reward):
    folder.add_evaluation(step_name(step), step, evaluation(reward))


def kept(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.checkpoints.iterdir())


def test_the_best_stays_beside_the_newest(folder):
    assert kept(folder) == [2, 4, 5]
    assert model_folder(folder.path / "best") == folder.checkpoints / "step_000002"
    assert folder.best_result().score.mean == 0.75
    assert folder.is_wanted(2)
    assert not folder.is_wanted(6)

    evaluate(folder, 5, 1.0)  # the evaluation of a checkpoint that is there already
    folder.settle()
    assert kept(folder) == [4, 5]
    assert weights_of(f"{folder.path}/best") == str(folder.checkpoints / "step_000005")


def test_more_of_the_best_or_none(folder):
    folder.unlock()
    several = RunFolder(folder.path, Keep(last=1, best=2))
    several.rewind(5)
    several.settle()
    assert kept(several) == [2, 4, 5], "of equal ones the earlier"
    none = RunFolder(folder.path, Keep(best=0))
    none.rewind(5)
    none.evaluating = 6
    assert not none.is_wanted(6)
    none.settle()
    assert (kept(none), none.best_result(), none.best.is_symlink()) == ([4, 5], None, False)


def test_a_checkpoint_whose_evaluation_runs_stays(folder):
    folder.evaluating = 4
    for step in (6, 7, 8):
        folder.save_checkpoint(step, lambda path: (path / "config.json").write_text("{}"))
    assert kept(folder) == [2, 4, 7, 8]
    evaluate(folder, 4, 0.9)
    folder.settle()
    assert kept(folder) == [4, 7, 8]


def test_going_back_forgets_the_later_steps(folder):
    folder.add_evaluation("final", 5, evaluation(1.0))
    folder.settle()
    assert model_folder(folder.path / "best").name == "step_000005"
    folder.save_model(folder.model, 5, lambda path: (path / "config.json").write_text("{}"))
    with pytest.raises(ConfigError, match="has no checkpoint 3; the steps of its checkpoints: 4, 5"):
        folder.checkpoint("3")
    assert folder.checkpoint("4") == folder.checkpoint("step_000004") == folder.checkpoints / "step_000004"

    folder.rewind(4)
    folder.settle()
    assert kept(folder) == [4]
    assert not folder.model.exists()
    assert [result.step for result in folder.results] == [1, 2, 3, 4]
    assert model_folder(folder.path / "best").name == "step_000004"


def test_it_is_told_if_there_is_no_best_or_a_damaged_one(folder):
    (folder.checkpoints / "step_000002" / "config.json").write_text("[]")
    with pytest.raises(
        ConfigError, match=r"step_000002 is damaged: config\.json is not as it was written; take another"
    ):
        weights_of(f"{folder.path}/best")
    folder.best.unlink()
    with pytest.raises(ConfigError, match="run has no checkpoint best; the steps of its checkpoints: 2, 4, 5"):
        weights_of(f"{folder.path}/best")
    assert weights_of("my/best") == "my/best", "a name on the Hub"


def test_the_viewer_opens_the_run(folder):
    source = open_source(folder.path / "best")
    assert source.path == folder.path
    assert source.state()["best"] == "step_000002"
    assert [line["mean"] for line in source.state()["evaluations"]] == [0.25, 0.75, 0.5, 0.0, 0.0]
    assert run_config(str(folder.path / "best")).out == folder.path


@pytest.mark.thorough
def test_kill_9_leaves_a_whole_best(tmp_path, make_config):
    folder = RunFolder(tmp_path / "run")
    folder.create(make_config())
    for round_ in range(8):
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            try:
                for step in range(1, 1000):
                    evaluate(folder, step, step / 1000)
                    folder.save_checkpoint(step, lambda path: (path / "weights").write_bytes(os.urandom(20_000)))
                    os.write(tell, b".")
            finally:
                os._exit(1)
        os.close(tell)
        for _ in range(2 + round_):
            os.read(told, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        assert damage(model_folder(folder.path / "best")) is None
        newest = int(folder.latest_checkpoint(pytest.fail).name.removeprefix("step_"))
        folder.rewind(newest)
        folder.settle()
        assert model_folder(folder.path / "best").name == step_name(newest)
        folder.rewind(0)
    folder.unlock()


class Collapsing(Trainer):
    """From step 3 on, each update ruins the weights."""

    def update(self, groups, step):
        metrics = super().update(groups, step)
        if step >= 3:
            with torch.no_grad():
                for parameter in self.learner.model.parameters():
                    parameter.mul_(0)
        return metrics


@pytest.mark.thorough
def test_a_run_that_collapses_keeps_its_best_model(make_config, tmp_path):
    def config(**values):
        return make_config(
            eval_data=tmp_path / "tasks.jsonl", eval_tasks=10, eval_every=1, env=f"{TOY}:Odd", **{"steps": 7, **values}
        )

    console = quiet()
    summary = train(config(), trainer=Collapsing, console=console)

    means = [summary.eval_start, *(line.get("eval_reward_mean") for line in lines(tmp_path / "run")[:-1])]
    best = summary.best["step"]
    assert best == max(range(7), key=lambda step: means[step]) < 3
    assert summary.eval_final < summary.best["mean"] == means[best]
    assert f"best, step {best}" in console.file.getvalue()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best"] == summary.best

    command, out = Command(), tmp_path / "run"
    assert (
        command("eval", f"{TOY}:Odd", "--model", f"{out}/best", "--data", str(tmp_path / "tasks.jsonl"), "--json") == 0
    )
    assert json.loads(command.stdout)["reward_mean"] == pytest.approx(means[best], abs=1e-9)

    link, folder = load_model(f"{out}/best").state_dict(), load_model(weights_of(f"{out}/best")).state_dict()
    assert all(torch.equal(link[name], folder[name]) for name in folder), "slime reads the link"

    resumed = train(config(steps=8), resume=True, console=quiet(), trainer=Collapsing)
    assert resumed.best == summary.best, "resuming keeps it"
    console = quiet()
    train(config(steps=best + 1), resume="best", console=console)
    assert f"resuming after step {best}\n" in console.file.getvalue()
    assert [line["step"] for line in lines(out)] == list(range(1, best + 2))


@pytest.mark.thorough
def test_the_best_of_a_run_whose_episodes_never_stop(make_config, tmp_path):
    config = make_config(
        steps=5, staleness=1, eval_data=tmp_path / "tasks.jsonl", eval_tasks=4, eval_every=2, keep={"last": 1}
    )
    summary = train(config, console=quiet())
    results = RunFolder(config.out)
    results.rewind(5)
    assert {result.name for result in results.results} >= {"start", "step_000002", "final"}
    assert model_folder(config.out / "best").name == step_name(summary.best["step"])
    assert sorted({5, summary.best["step"]}) == kept(results)
