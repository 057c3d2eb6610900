"""Verdicts: each on figures of a run that has the cause, and none on figures of a healthy run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.monitor.run_figures import RunFigures, largest_fall, paired
from agentrl.monitor.verdicts import TABLE, causes, verdicts

PAGE = Path(__file__).parents[2] / "docs" / "not-learning.md"
STEP: dict[str, Any] = {
    "reward_mean": 0.4,
    "reward_std": 0.48,
    "episodes": 64,
    "failed_episodes": 0,
    "groups": 8,
    "zero_advantage_groups": 2,
    "episodes_with_tools": 64,
    "tool_call_rate": 0.6,
    "bad_call_rate": 0.03,
    "truncation_rate": 0.02,
    "tool_errors": {},
    "failed_at": {},
    "stops": {"done": 63, "turn_max_tokens": 1},
    "learning_rate": 3e-4,
    "entropy": 0.2,
    "logprob_change": 0.01,
    "kl": 0.0,
}
"""Figures of a step of the quickstart's Env before it learns anything."""
FLAT = [0.40, 0.38, 0.42, 0.39, 0.41, 0.40, 0.43, 0.37, 0.40, 0.41, 0.39, 0.42]
RISING = [0.38, 0.45, 0.52, 0.60, 0.66, 0.72, 0.80, 0.82, 0.86, 0.88, 0.87, 0.88]


def steps(rewards=FLAT, **changed) -> list[dict[str, Any]]:
    return [{**STEP, **changed, "step": number, "reward_mean": reward} for number, reward in enumerate(rewards, 1)]


def evaluation(step: int, right: int, of: int = 40, pay: float = 1.0) -> dict[str, Any]:
    """A line of evaluations.jsonl: the first `right` of the tasks are right."""
    rewards = [pay] * right + [0.0] * (of - right)
    mean = sum(rewards) / of
    return {"step": step, "mean": mean, "interval": [mean - 0.1, mean + 0.1], "rewards": rewards}


def episodes(*answers: tuple[str, float, int]) -> list[dict[str, Any]]:
    """Episodes of eight tasks. An answer has its text, its reward, and the number of its episodes."""
    listed = [(text, reward) for text, reward, count in answers for _ in range(count)]
    return [{"task": f"t{n % 8}", "answer": text, "reward": reward} for n, (text, reward) in enumerate(listed)]


VARIED = episodes(*((f"answer {n}", float(n % 3 == 0), 2) for n in range(32)))
SORRY = episodes(("Sorry, that is not possible.", 0.66, 40), ("sunny", 1.0, 8), ("rainy", 0.0, 16))
SUNNY = episodes(("sunny", 0.0, 50), ("sunny", 1.0, 8), ("rainy", 0.0, 6))
FELL = [evaluation(0, 35), evaluation(20, 23)]

PLANTED: dict[str, dict[str, Any]] = {
    "failing_episodes": {"steps": steps(failed_episodes=20, failed_at={"env.py:12 KeyError": 20})},
    "only_in_training": {"steps": steps([0.7, 0.72, 0.71, *RISING[6:]]), "evaluations": FELL},
    "harm": {"steps": steps([0.8] * 12), "evaluations": FELL},
    "unsure": {"steps": steps([0.47, *FLAT]), "evaluations": [evaluation(0, 35), evaluation(12, 35)]},
    "no_tool": {"steps": steps(tool_call_rate=0.0)},
    "failing_calls": {"steps": steps(bad_call_rate=0.6)},
    "cut": {"steps": steps(truncation_rate=0.9)},
    "equal_rewards": {"steps": steps([0.25] * 12, reward_std=0.0, zero_advantage_groups=8)},
    "constant_pays": {"steps": steps([0.56] * 12), "episodes": SORRY},
    "equal_answers": {"steps": steps([0.12] * 12), "episodes": SUNNY},
    "greedy_behind": {"steps": steps([0.9] * 12), "evaluations": [evaluation(0, 8), evaluation(12, 8)]},
    "collapse": {"steps": [{**step, "entropy": 0.4 / step["step"] ** 2} for step in steps()]},
    "hardly_changes": {"steps": steps(logprob_change=2e-6)},
    "lost_demonstrations": {"steps": steps(), "demonstrations": {"episodes": 80, "lost": 70}},
}


def read(figures: dict[str, Any]) -> RunFigures:
    return RunFigures(**{"episodes": VARIED, **figures})


@pytest.mark.parametrize("name", TABLE)
def test_a_planted_cause_gets_its_verdict_and_no_other(name):
    [verdict] = causes(read(PLANTED[name]))
    assert verdict.name == name
    assert re.search(r"\d", verdict.text), "a figure"
    assert verdict.text.count(". ") <= 2


def test_other_figures_of_the_same_causes():
    tool = read({"steps": steps(tool_errors={"lookup:KeyError": 64})})
    drift = read({"steps": steps(kl=3.0)})
    sampled = read({"steps": steps(RISING[::-1])})
    noisy = read({"steps": steps([0.47, *FLAT]), "evaluations": FELL})
    names = [[verdict.name for verdict in causes(run)] for run in (tool, drift, sampled, noisy)]
    assert names == [["failing_calls"], ["collapse"], ["harm"], ["harm", "unsure"]]
    assert "The sampled reward fell from 0.862 (step 1) to 0.522 (step 12)" in causes(sampled)[0].text


@pytest.mark.parametrize(
    "healthy",
    [
        {"steps": steps(RISING)},
        {"steps": steps(RISING, tool_call_rate=0.0, truncation_rate=0.4, bad_call_rate=0.3), "episodes": SUNNY},
        {"steps": steps(RISING), "evaluations": [evaluation(0, 14), evaluation(12, 37)]},
        {"steps": steps(), "evaluations": [evaluation(0, 14), evaluation(12, 37)]},
        {"steps": steps([0.97] * 12, zero_advantage_groups=7), "evaluations": [evaluation(0, 38), evaluation(12, 38)]},
        {"steps": steps(), "evaluations": [evaluation(0, 16), evaluation(6, 19), evaluation(12, 15)]},
        {"steps": steps(RISING), "demonstrations": {"episodes": 80, "lost": 70}},
        {"steps": steps([0.5, *FLAT]), "evaluations": [evaluation(0, 40), evaluation(12, 40)]},
        {"steps": steps(), "episodes": [{**episode, "answer": "done", "calls": {"book": 1}} for episode in SUNNY]},
        {"steps": steps(FLAT[:2])},
    ],
    ids=[
        "rises",
        "odd but rises",
        "held out rises",
        "only held out",
        "at the top",
        "noise",
        "poor teacher",
        "solved",
        "done",
        "short",
    ],
)
def test_a_healthy_run_gets_none(healthy):
    assert causes(read(healthy)) == []
    assert verdicts(read(healthy))[0].name in ("learned", "at_the_top", "no_gain", "too_short")


def test_the_figures_are_in_the_text():
    [harm] = causes(read(PLANTED["harm"]))
    assert harm.text == (
        "The held-out reward fell from 0.875 (step 0) to 0.575 (step 20), on the same 40 tasks: -0.300 ± "
        "0.191. Reinforcement harms: halve learning_rate (0.0003); the best weights are in the run folder, at best."
    )
    [pays] = causes(read(PLANTED["constant_pays"]))
    assert pays.text.startswith("40 of 64 answers of the last step are refusals, in 8 tasks, and earn 0.66")
    learned = verdicts(read({"steps": steps(RISING), "evaluations": [evaluation(0, 14), evaluation(12, 37)]}))
    assert str(learned[0]) == (
        "It learned: the held-out reward rose from 0.350 (step 0) to 0.925 (step 12), on the same 40 tasks: "
        "+0.575 ± 0.206."
    )
    assert verdicts(RunFigures()) == causes(RunFigures(evaluations=FELL)) == []


def test_every_verdict_links_to_a_paragraph():
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {place for _, place in TABLE.values()} <= anchors
    assert "none-of-these" in anchors


@pytest.mark.parametrize(("after", "falls"), [(23, True), (31, False), (40, False), (28, True)])
def test_each_task_is_compared_with_itself(after, falls):
    fall = largest_fall([evaluation(0, 10), evaluation(0, 35), evaluation(10, after)])
    assert (fall is not None) == falls


def test_the_best_counts_too_and_few_tasks_do_not():
    best = [evaluation(0, 20), evaluation(10, 38), evaluation(20, 21)]
    fall = largest_fall(best)
    assert fall is not None
    assert (fall.since, fall.until) == (10, 20)
    few = [evaluation(0, 7, of=7), evaluation(10, 0, of=7)]
    assert paired(*few) is largest_fall(few) is None
    failed = {**evaluation(10, 0), "rewards": [None] * 34 + [0.0] * 6}
    assert largest_fall([evaluation(0, 35), failed]) is None, "too few tasks were scored"


def test_a_folder_is_read_while_its_run_writes(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps()) + '{"step": 13, "rew')
    (tmp_path / "index" / "step_000012.jsonl").write_text("".join(json.dumps(e) + "\n" for e in SUNNY))
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation(0, 35)) + "\n")
    event = {"step": 0, "demonstrations": {"episodes": 8, "lost": 7}}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n[]\n")
    run = RunFigures.read(tmp_path)
    assert (len(run.steps), len(run.episodes), run.demonstrations["lost"], run.ended) == (12, 64, 7, None)
    assert verdicts(RunFigures.read(tmp_path / "none")) == []
