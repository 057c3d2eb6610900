"""Canaries in a training run: it stops with a reason, keeps what it has, and can go on."""

import io
import json
import re

import pytest
from rich.console import Console

from agentrl.errors import CanaryError
from agentrl.train import train

TOY = __file__.replace("test_canaries.py", "toy_env.py")


def quiet():
    return Console(file=io.StringIO(), width=1000)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_a_run_without_tool_calls_stops_and_may_go_on_without_its_canary(make_config, tmp_path):
    silent = {"env": f"{TOY}:Tools", "steps": 5, "checkpoint_every": 2}

    with pytest.raises(CanaryError, match=r"^steps 1 to 3: none of 36 episodes called a tool, though they had tools"):
        train(make_config(**silent, canaries={"no_tool_calls": 3}), console=quiet())

    run = tmp_path / "run"
    assert [line["step"] for line in lines(run)] == [1, 2, 3], "the step that told is kept to be read"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000000", "step_000002"]
    assert {(line["tool_call_rate"], line["episodes_with_tools"]) for line in lines(run)} == {(0.0, 12)}

    train(make_config(**silent, canaries={"no_tool_calls": 0}), resume=True, console=quiet())
    assert [line["step"] for line in lines(run)] == [1, 2, 3, 4, 5]


@pytest.mark.thorough
def test_a_run_that_cannot_train_a_token_stops_at_its_first_step(make_config, tmp_path):
    with pytest.raises(
        CanaryError, match=r"^step 1: no token can be trained: .* masked: env_failure \d+; .* failed 12"
    ):
        train(make_config(env=f"{TOY}:Gone"), console=quiet())

    train(make_config(env=f"{TOY}:Gone", out=tmp_path / "on", canaries=None), console=quiet())
    assert [line["trained_tokens"] for line in lines(tmp_path / "on")] == [0, 0]


@pytest.mark.thorough
def test_a_reward_that_never_differs_is_a_warning(make_config, tmp_path):
    console = quiet()
    train(make_config(reward=f"{TOY}:same", steps=10), console=console)

    assert "warning: steps 1 to 10: the rewards of no group differed (their mean is 0.25)" in console.file.getvalue()
    assert [line["zero_advantage_groups"] for line in lines(tmp_path / "run")] == [3] * 10


@pytest.mark.thorough
def test_tasks_that_always_fail_are_a_warning_that_names_the_line(make_config, tmp_path):
    console = quiet()
    train(make_config(env=f"{TOY}:Flaky", prompts_per_step=10, steps=3), console=console)
    said = console.file.getvalue()
    assert "warning: steps 1 to 3: every episode of 3 in 30 groups failed" in said, said
    assert re.search(r"most failures at \S*toy_env\.py:\d+ InfraError: fix that", said), said
    assert [line["failed_groups"] for line in lines(tmp_path / "run")] == [1, 1, 1]


@pytest.mark.thorough
def test_every_step_reports_the_same_figures(make_config, tmp_path):
    train(make_config(), console=quiet())

    for line in lines(tmp_path / "run"):
        assert line["prefix_breaks"] == 0
        assert line["bad_call_rate"] == line["tool_call_rate"] == 0.0
        assert (line["groups"], line["episodes"], line["episodes_with_tools"], line["tool_errors"]) == (3, 12, 0, {})
        assert sum(line["stops"].values()) == 12
        assert line["truncation_rate"] == line["stops"].get("turn_max_tokens", 0) / 12
