"""A run whose held-out reward falls warns, and returns to its best weights if it is asked to."""

from __future__ import annotations

import json

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.models import load_model
from agentrl.train import Trainer, train
from tests.train.toy_runs import TOY, Crash, lines, quiet

FALL = (
    "held out fell from 1.000 (step 0) to 0.000 (step 2), on the same 10 tasks: -1.000 ± 0.000. Reinforcement harms: "
    "halve"
)


@pytest.fixture
def falling(make_config, tmp_path):
    """The configuration of a run that loses its held-out reward in step 2."""
    rows = [{"prompt": f"say {i}", "label": 0.0, "id": str(i)} for i in range(10)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(fall="warn", **values):
        given = {"env": f"{TOY}:Worse", "eval_data": tmp_path / "held.jsonl", "eval_every": 2, "steps": 4}
        return make_config(**{**given, "canaries": {"held_out_fall": fall}, "keep": {"last": 9}, **values})

    return make


def events(folder):
    return [json.loads(line)["message"] for line in (folder / "events.jsonl").read_text().splitlines()]


def weights(folder):
    return dict(load_model(str(folder)).named_parameters())


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.thorough
def test_a_fall_is_a_warning_and_the_verdict(falling, tmp_path):
    console = quiet()
    summary = train(falling(), console=console)
    assert [FALL in event for event in events(tmp_path / "run")] == [True]
    assert summary.verdicts[0]["name"] == "harm"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["verdicts"] == list(summary.verdicts)
    said = " ".join(console.file.getvalue().split())
    assert "verdict The held-out reward fell from 1.000 (step 0) to 0.000 (step 4), on the same 10 tasks" in said
    assert "See docs/not-learning.md#reinforcement-harms" in said

    train(falling(canaries=None, out=tmp_path / "off"), console=quiet())
    assert not (tmp_path / "off" / "events.jsonl").exists()


@pytest.mark.thorough
def test_a_run_goes_back_once_and_a_resumed_run_is_the_same(falling, tmp_path):
    run = tmp_path / "run"
    train(falling("go_back"), console=quiet())
    [event] = events(run)
    assert FALL in event
    assert event.endswith("; the run returns to the weights of step 0, with half the learning rate")
    checkpoints = run / "checkpoints"
    assert same(weights(checkpoints / "step_000002"), weights(checkpoints / "step_000000"))
    assert not same(weights(checkpoints / "step_000004"), weights(checkpoints / "step_000000"))
    rates = [line["learning_rate"] for line in lines(run)]

    train(falling(out=tmp_path / "warned"), console=quiet())
    full = [line["learning_rate"] for line in lines(tmp_path / "warned")]
    assert rates == pytest.approx([full[0], full[1], full[2] / 2, full[3] / 2])

    class Killed(Trainer):
        def update(self, groups, step):
            if step == 4:
                raise Crash
            return super().update(groups, step)

    again = falling("go_back", out=tmp_path / "again")
    with pytest.raises(Crash):
        train(again, trainer=Killed, console=quiet())
    train(again, resume=True, console=quiet())
    assert same(weights(tmp_path / "again" / "model"), weights(run / "model"))


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{"lora": {"rank": 2}}, {"staleness": 1, "engine": "local"}], ids=["lora", "async"])
def test_other_runs_go_back_too(falling, tmp_path, more):
    train(falling("go_back", **more), console=quiet())
    assert "the run returns to the weights of step 0" in events(tmp_path / "run")[0]
    assert len(lines(tmp_path / "run")) == 4


@pytest.mark.parametrize("values", [{"eval_every": 0}, {"keep": {"best": 0}}])
def test_nothing_to_go_back_to_is_a_wrong_configuration(falling, values):
    with pytest.raises(ConfigError, match="held_out_fall: go_back needs eval_every"):
        falling("go_back", **values)
