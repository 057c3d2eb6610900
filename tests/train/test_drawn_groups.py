"""A run that chooses its groups: refill and filters."""

from __future__ import annotations

import json

import pytest

from agentrl.errors import ConfigError
from agentrl.train import train
from tests.train.toy_runs import TOY, Crash, CrashingTrainer, lines, played, quiet


@pytest.fixture
def chosen(make_config, tmp_path):
    """Six steps in which half of the tasks teach nothing."""
    rows = [{"prompt": f"say {i}", "label": i / 100, "id": str(i)} for i in range(10)]
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**values):
        given = {
            "env": f"{TOY}:Uneven",
            "data": tmp_path / "hard.jsonl",
            "steps": 6,
            "checkpoint_every": 2,
            "refill": 2,
        }
        return make_config(**{**given, **values})

    return make


@pytest.mark.thorough
def test_the_metrics_count_what_was_drawn_and_what_teaches(chosen):
    config = chosen()
    train(config, console=quiet())

    found = lines(config.out)
    assert sum(line["replaced_groups"] for line in found) > 0
    for line in found:
        assert line["groups"] == config.prompts_per_step + line["replaced_groups"]
        assert line["episodes"] == line["groups"] * config.group_size
        assert line["sampled_tokens"] == line["trained_tokens"] + sum(line["masked_tokens"].values())
        assert (line["masked_tokens"].get("replaced", 0) > 0) == (line["replaced_groups"] > 0)
        assert line["teaching_share_drawn"] <= line["teaching_share"]
        teach = round(line["teaching_share"] * config.prompts_per_step)
        assert teach == line["groups"] - line["zero_advantage_groups"]
    assert max(line["teaching_share"] - line["teaching_share_drawn"] for line in found) > 0.3


@pytest.mark.thorough
def test_what_replaced_groups_sampled_is_not_in_the_mean_of_the_loss(chosen):
    """The divisor counts the tokens of the kept groups alone."""
    config, counted = chosen(steps=1), []

    class Watching(CrashingTrainer):
        def normaliser(self, trajectories):
            counted.append(super().normaliser(trajectories))
            return counted[-1]

    train(config, trainer=Watching, console=quiet())
    assert counted == [lines(config.out)[0]["trained_tokens"]]


@pytest.mark.thorough
@pytest.mark.parametrize("last", [1, 4])
def test_a_killed_run_draws_and_replaces_the_same_groups(chosen, tmp_path, last):
    """Killed in step `last`, and so resumed from the start or from step 2."""
    whole, broken = chosen(out=tmp_path / "whole"), chosen(out=tmp_path / "broken")
    train(whole, console=quiet())

    class Killed(CrashingTrainer):
        def update(self, groups, step):
            if step == last:
                raise Crash
            return super().update(groups, step)

    with pytest.raises(Crash):
        train(broken, trainer=Killed, console=quiet())
    train(broken, resume=True, console=quiet())

    assert lines(broken.out) == lines(whole.out)
    assert played(broken.out) == played(whole.out)
    assert sum(line["replaced_groups"] for line in lines(whole.out)) > 0


@pytest.mark.thorough
def test_a_run_without_a_difference_says_what_to_do(chosen):
    console = quiet()
    train(chosen(reward=f"{TOY}:same", steps=2), console=console)

    said = console.file.getvalue()
    assert said.count("in each of 9 groups all episodes got the same reward, refill (2) included") == 1


@pytest.mark.thorough
def test_filters_replace_groups_and_their_reasons_are_counted(chosen, tmp_path):
    """A function that drops the tasks of odd number, beside what teaches nothing: those of even number."""
    (tmp_path / "own.py").write_text("def even(group):\n    return int(group[0].task.id) % 2 == 0 or 'odd'\n")
    config = chosen(filters=[f"{tmp_path / 'own.py'}:even"], steps=2)
    train(config, console=quiet())
    for line in lines(config.out):
        assert line["dropped_odd"] + line["dropped_no_spread"] == line["replaced_groups"] == 6
        assert line["teaching_share"] == 0
    assert sum(line["dropped_odd"] for line in lines(config.out)) > 0


def test_filters_need_refill(chosen):
    with pytest.raises(ConfigError, match="set refill, such as 3"):
        chosen(refill=0, filters=["own.py:even"])
