"""A run that was interrupted, damaged or finished goes on: exactly, or with one line that says why not."""

from __future__ import annotations

import asyncio
import io
import signal

import pytest
from rich.console import Console

from agentrl._util.signals import Terminated
from agentrl.errors import ConfigError
from agentrl.rollout import BugError
from agentrl.train import Trainer, model_folder, train
from tests.train.played import lines, played

TOY = __file__.replace("test_going_on.py", "toy_env.py")


def quiet():
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def four_steps(make_config, demonstrations, tmp_path):
    """A run of four steps after a warm start, with no checkpoint in between."""

    def make(name, **values):
        warm = {"demonstrations": demonstrations, "steps": 4, "batch_size": 4, "optimizer": "muon"}
        return make_config(
            **{"out": tmp_path / name, "steps": 4, "checkpoint_every": 100, "warm_start": warm, **values}
        )

    return make


@pytest.fixture(scope="module")
def known():
    """Of the run that nothing interrupts: played once, as all are alike."""
    return {}


@pytest.fixture
def straight(four_steps, known, tmp_path):
    if not known:
        config = four_steps("straight", eval_data=tmp_path / "tasks.jsonl", eval_tasks=2)
        summary = train(config, console=quiet())
        known["lines"], known["played"] = lines(config.out), played(config.out)
        known["evals"] = summary.eval_start, summary.eval_warm, summary.eval_final
    return known


def stopping(at, number):
    """A Trainer to which this signal is sent at this place."""

    class Stopping(Trainer):
        async def collect(self, step):
            if at == "collect" and step == 3:
                signal.raise_signal(number)
                await asyncio.sleep(0)  # the cancellation comes in here
            groups = await super().collect(step)
            if at == "learn" and step == 3:
                signal.raise_signal(number)
            return groups

        async def evaluate(self, name):
            if (at, name) in (("warm evaluation", "warm"), ("evaluation", "step_000002")):
                signal.raise_signal(number)
                await asyncio.sleep(60)
            return await super().evaluate(name)

        async def warm_start(self):
            if at == "warm start":
                imitate = self.learner.imitate

                def stop_after_two(*args):
                    if self.position.warm_steps == 1:
                        signal.raise_signal(number)
                    return imitate(*args)

                self.learner.imitate = stop_after_two
            await super().warm_start()

    return Stopping


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("at", "number", "ends", "says"),
    [
        ("collect", signal.SIGINT, KeyboardInterrupt, "after step 2"),
        ("learn", signal.SIGTERM, Terminated, "after step 3"),
        ("warm start", signal.SIGINT, KeyboardInterrupt, "in the warm start, after 2 of 4 steps"),
        ("warm evaluation", signal.SIGTERM, Terminated, "in the warm start, after 4 of 4 steps"),
    ],
)
def test_an_interruption_loses_nothing(four_steps, straight, tmp_path, at, number, ends, says):
    broken = four_steps("broken", eval_data=tmp_path / "tasks.jsonl", eval_tasks=2)
    console = quiet()
    with pytest.raises(ends) as caught:
        train(broken, trainer=stopping(at, number), console=console)
    assert type(caught.value) is ends
    assert f"checkpoint written {says}\n" in console.file.getvalue()

    console = quiet()
    resumed = train(broken, resume=True, console=console)
    assert f"resuming {says}\n" in console.file.getvalue()
    assert lines(broken.out) == straight["lines"]
    assert played(broken.out) == straight["played"]
    assert (resumed.eval_start, resumed.eval_warm, resumed.eval_final) == straight["evals"]


@pytest.mark.thorough
def test_an_interrupted_evaluation_costs_its_figure_alone(four_steps, straight, tmp_path):
    config = four_steps("run", eval_data=tmp_path / "tasks.jsonl", eval_tasks=2, eval_every=2)
    with pytest.raises(Terminated):
        train(config, trainer=stopping("evaluation", signal.SIGTERM), console=quiet())
    train(config, resume=True, console=quiet())
    assert lines(config.out) == straight["lines"]


def test_an_interruption_before_anything_is_learned_writes_none(four_steps, tmp_path):
    class Early(Trainer):
        async def warm_start(self):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)

    config = four_steps("run")
    with pytest.raises(Terminated):
        train(config, trainer=Early, console=quiet())
    assert list((config.out / "checkpoints").iterdir()) == []


@pytest.mark.thorough
def test_demonstrations_are_needed_for_the_warm_start_only(four_steps, demonstrations):
    train(four_steps("run", steps=1), console=quiet())
    demonstrations.unlink()

    train(four_steps("run", steps=2), resume=True, console=quiet())
    with pytest.raises(ConfigError, match="no such file of demonstrations"):
        train(four_steps("other"), console=quiet())


@pytest.mark.thorough
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(make_config):
    config = make_config(steps=3, checkpoint_every=1)
    train(config, console=quiet())
    before = lines(config.out)
    weights = config.out / "checkpoints" / "step_000003" / "optimizer.pt"
    weights.write_bytes(weights.read_bytes()[:-100])

    console = quiet()
    train(config, resume=True, console=console)

    said = console.file.getvalue()
    assert "warning: " in said
    assert "step_000003 is damaged: optimizer.pt is not as it was written; taking the one before" in said
    assert "resuming after step 2" in said
    assert lines(config.out) == before


@pytest.mark.thorough
def test_more_steps_after_the_last_change_neither_learning_rate_nor_weights_in_a_jump(make_config, tmp_path):
    config = make_config(steps=3, lr_final=0.1, lr_warmup_steps=0, learning_rate=1e-3)
    train(config, console=quiet())
    finished = model_folder(config.out)
    assert finished.name == "model"

    class Stops(Trainer):
        def update(self, groups, step):
            if step == 6:
                raise KeyError("stop here")
            return super().update(groups, step)

    with pytest.raises(KeyError):
        train(
            make_config(steps=9, checkpoint_every=5, lr_final=0.1, lr_warmup_steps=0, learning_rate=1e-3),
            trainer=Stops,
            resume=True,
            console=quiet(),
        )
    assert model_folder(config.out).name == "step_000005", "what eval, show and serve read"
    rates = [line["learning_rate"] for line in lines(config.out)]
    assert rates == pytest.approx([7e-4, 4e-4, 1e-4, 1e-4, 1e-4])

    train(make_config(steps=6, lr_final=0.1, lr_warmup_steps=0, learning_rate=2e-3), resume=True, console=quiet())
    assert model_folder(config.out).name == "model"
    assert lines(config.out)[-1]["learning_rate"] == pytest.approx(2e-4), "a new rate counts at once"


@pytest.mark.thorough
def test_changed_data_is_for_the_user_to_decide(make_config, tmp_path):
    train(make_config(), console=quiet())
    file = tmp_path / "tasks.jsonl"
    file.write_text(file.read_text().replace('"prompt": "say 3"', '"prompt": "say three"'))

    with pytest.raises(ConfigError, match=r"1 of 10 rows of the data changed, row 4 \(id 3\), since the run began"):
        train(make_config(steps=4), resume=True, console=quiet())
    train(make_config(steps=4), resume=True, accept_changed_data=True, console=quiet())

    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4]
    train(make_config(steps=5), resume=True, console=quiet())


@pytest.mark.thorough
async def test_a_second_resume_is_told_in_one_line(make_config):
    async with Trainer(make_config(), console=quiet()) as first:
        with pytest.raises(ConfigError, match="another process is training in this folder") as error:
            async with Trainer(make_config(), resume=True, console=quiet()):
                pass
        assert "\n" not in str(error.value)
        await first.run()
    async with Trainer(make_config(steps=3), resume=True, console=quiet()) as again:
        await again.run()


@pytest.mark.thorough
@pytest.mark.parametrize(("env", "error"), [("Buggy", BugError), ("Unscored", ConfigError)])
def test_a_start_that_fails_leaves_no_folder(make_config, tmp_path, env, error):
    (tmp_path / "empty").mkdir()
    for out in ("run", "empty"):
        with pytest.raises(error):
            train(make_config(env=f"{TOY}:{env}", out=tmp_path / out), console=quiet())
        train(make_config(out=tmp_path / out, steps=1), console=quiet())
        assert len(lines(tmp_path / out)) == 1


@pytest.mark.thorough
def test_what_was_learned_before_a_failure_stays(four_steps, tmp_path):
    config = four_steps("run", env=f"{TOY}:Buggy")
    with pytest.raises(BugError):
        train(config, console=quiet())
    assert model_folder(config.out).name == "step_000000", "the warm start"
