"""Fully-async launches of slime before 0.4 and from 0.4 on: ten mistakes in each, and what `agentrl check slime` finds.

The generations differ in what slime's folder has: train_async.py beside train.py, or train.py alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.slime.init import CONFIG, SCRIPT
from tests.slime.mistakes import run as run  # a fixture
from tests.slime.mistakes import serious

PROGRAMS = {"before 0.4": ("train.py", "train_async.py"), "0.4": ("train.py",)}
SNAPSHOTS = "    def score(self, trajectory) -> float:"
STRAW = "--rollout-shuffle --rollout-data-transport straw"


@pytest.fixture
def fully_async(monkeypatch):
    """Begin with this fixture: the launch that `run` makes then generates while it trains."""
    monkeypatch.setenv("FULLY_ASYNC", "1")


@pytest.fixture
def launch(fully_async, run, monkeypatch, tmp_path):
    """`launch(generation, file, old, new)`: the errors and warnings of a launch with one change."""

    def checked(generation, *change):
        for program in PROGRAMS[generation]:
            (tmp_path / "slime" / program).touch()
        return serious(run(*change))

    return checked


@pytest.mark.parametrize("generation", PROGRAMS)
def test_the_launch_is_good(launch, generation):
    assert launch(generation) == []


@pytest.mark.parametrize(("old", "new"), [("--rollout-shuffle", STRAW), ("--use-tis", "--use-score-centering")])
def test_what_0_4_brings_is_good(launch, old, new):
    assert launch("0.4", SCRIPT, old, new) == []


def test_queues_and_an_env_that_any_node_resumes_are_good(launch):
    env = Path("my_env.py")
    env.write_text(env.read_text().replace(SNAPSHOTS, f"    deterministic = True\n\n{SNAPSHOTS}"))
    config = Path(CONFIG)
    config.write_text(config.read_text().replace("  limits:", "  parking: {folder: /shared/parked}\n  limits:"))
    assert launch("0.4", SCRIPT, "--rollout-shuffle", STRAW) == []


def args(*flags):
    return SCRIPT, "--rollout-shuffle", " ".join(("--rollout-shuffle", *flags))


EVALUATION = "--eval-interval 20 --eval-prompt-data held_out ${DATA}/held_out.jsonl"
OWN = ("slime.rollout.fully_async_rollout.generate_rollout_fully_async", "agentrl.slime.generate_rollout_fully_async")


def test_agentrls_own_fully_async_rollout_evaluates_before_0_4(launch):
    script = Path(SCRIPT)
    script.write_text(script.read_text().replace(*args(EVALUATION)[1:]))
    assert launch("before 0.4", SCRIPT, *OWN) == []


def test_agentrls_own_fully_async_rollout_is_refused_from_0_4_on(launch):
    (found,) = launch("0.4", SCRIPT, *OWN)
    assert found[0] == "error"
    assert "it is for slime before 0.4" in found[1]


MISTAKES = {
    "before 0.4": [
        ((SCRIPT, "PROGRAM=train_async.py", "PROGRAM=train.py"), "warning", "start train_async.py"),
        (args("--colocate"), "error", "remove --colocate"),
        (args(EVALUATION), "error", "fully-async rollout, which cannot evaluate"),
        (
            args(EVALUATION, "--eval-function-path slime.rollout.sglang_rollout.generate_rollout"),
            "warning",
            "both wait for the same generation slots",
        ),
        ((CONFIG, "  limits:", "  thinking: strip\n  limits:"), "error", "`thinking: strip` gives several samples"),
        ((SCRIPT, "--advantage-estimator grpo", "--advantage-estimator grop"), "error", "does not know it"),
        ((CONFIG, "  limits:", "  parking: {keep_s: 0}\n  limits:"), "warning", "neither be restored nor replayed"),
        (args("--mask-offpolicy-in-partial-rollout"), "warning", "also masks whole episodes"),
        (
            args("--dynamic-sampling-filter-path slime.rollout.filter_hub.x.check_reward_nonzero_std"),
            "warning",
            "counts the 0.0 of failed episodes",
        ),
        (
            (SCRIPT, '--router-policy "${ROUTER_POLICY:-consistent_hashing}"', ""),
            "warning",
            "add --router-policy consistent_hashing",
        ),
    ],
    "0.4": [
        (
            args("--eval-function-path slime.rollout.sglang_rollout.generate_rollout"),
            "error",
            "remove --eval-function-path",
        ),
        (args("--rollout-data-transport straw --buffer-filter-path agentrl.slime.oldest_first"), "error", "--buffer-"),
        (
            args("--rollout-data-transport straw --rollout-all-samples-process-path rollout.filters.spread"),
            "error",
            "no node of a distributed rollout has all samples",
        ),
        (("my_env.py", SNAPSHOTS, f"    deterministic = True\n\n{SNAPSHOTS}"), "warning", "a folder that all nodes"),
        ((SCRIPT, '--save "${SAVE}"', ""), "error", "straw has no folder"),
        (args("--use-score-centering --rollout-top-p 0.9"), "error", "not those of a nucleus"),
        (
            args("--use-score-centering --custom-tis-function-path agentrl.slime.watch_log_probs"),
            "error",
            "remove --custom-tis-function-path",
        ),
        ((SCRIPT, "--advantage-estimator grpo", "--advantage-estimator flash"), "error", "does not know it"),
        (args("--rollout-data-transpor straw"), "warning", "did you mean --rollout-data-transport?"),
        ((SCRIPT, "--n-samples-per-prompt 8", "--n-samples-per-prompt 1"), "error", "a group of one has no advantage"),
    ],
}


@pytest.mark.parametrize(
    ("generation", "change", "level", "message"),
    [(generation, *row) for generation, rows in MISTAKES.items() for row in rows],
)
def test_it_is_found(launch, generation, change, level, message):
    if message in ("a folder that all nodes", "straw has no folder"):  # mistakes beside the queues
        script = Path(SCRIPT)
        script.write_text(script.read_text().replace("--rollout-shuffle", STRAW))
    found = launch(generation, *change)
    assert any(level == grade and message in text for grade, text in found), found
    assert len(found) <= 2, "and little else"


def test_there_are_ten_for_each():
    assert {generation: len(rows) for generation, rows in MISTAKES.items()} == dict.fromkeys(PROGRAMS, 10)
