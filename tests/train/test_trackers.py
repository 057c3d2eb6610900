"""W&B beside TensorBoard: the same run goes on after --resume, and a W&B that fails ends nothing."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from agentrl.errors import ConfigError
from agentrl.train import train
from tests.train.played import lines

SMALL = {"prompts_per_step": 2, "group_size": 2, "minibatches": 1, "wandb": "agents"}


class FakeWandB(SimpleNamespace):
    """Keeps what it is told; `fails` names the call that raises."""

    def __init__(self, fails=None):
        super().__init__(runs=[], fails=fails, Settings=lambda **values: values)

    def init(self, **values):
        self.raise_if("init")
        run = SimpleNamespace(values=values, logged=[], finished=False, log=None, finish=None)
        self.runs.append(run)

        def log(metrics, step):
            self.raise_if("log")
            run.logged.append((step, metrics))

        def finish():
            self.raise_if("finish")
            run.finished = True

        run.log, run.finish = log, finish
        return run

    def raise_if(self, call):
        if self.fails == call:
            raise RuntimeError(f"no network\nin {call}")


@pytest.fixture
def fake(monkeypatch):
    made = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def play(config, **options):
    console = Console(file=io.StringIO(), width=1000)
    train(config, console=console, **options)
    return console.file.getvalue()


@pytest.mark.thorough
def test_a_run_that_goes_on_is_the_same_run_there(make_config, fake, tmp_path):
    play(make_config(**SMALL, steps=1))
    play(make_config(**{**SMALL, "wandb": "renamed"}, steps=3), resume=True)

    first, second = fake.runs
    assert first.values["id"] == second.values["id"] == (tmp_path / "run" / "wandb_id").read_text()
    assert (first.values["project"], second.values["project"], first.values["resume"]) == ("agents", "renamed", "allow")
    assert first.values["config"]["prompts_per_step"] == 2
    assert [step for step, _ in first.logged + second.logged] == [1, 2, 3]
    metrics = second.logged[-1][1]
    assert metrics["reward_mean"] == lines(tmp_path / "run")[-1]["reward_mean"]
    assert all(isinstance(value, int | float) for value in metrics.values())
    assert first.finished
    assert second.finished


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_a_failing_one_is_a_warning(make_config, fake, tmp_path, call):
    fake.fails = call

    said = play(make_config(**SMALL, steps=2))

    assert said.count(f"warning: W&B: RuntimeError: no network in {call}; continuing without it\n") == 1
    assert len(lines(tmp_path / "run")) == 2


def test_without_it_nothing_is_imported(make_config, fake, tmp_path):
    play(make_config(**{**SMALL, "wandb": None}, steps=0))
    assert not fake.runs
    assert not (tmp_path / "run" / "wandb_id").exists()


def test_a_missing_one_is_told_before_anything_is_written(make_config, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb: it is not installed .*pip install -e '.\[wandb\]'"):
        train(make_config(**SMALL))
    assert not (tmp_path / "run").exists()
