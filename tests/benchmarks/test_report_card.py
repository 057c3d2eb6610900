"""The report card on planted defects: each is found, the healthy environment has none, and no row is played again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report_card import confirmed, page, probe, worker
from benchmarks.report_card.environment import suite_environments

ROOT = Path(__file__).parents[2]
SUITE = "tests.benchmarks.planted"
PLANTED = {each.name: each for each in suite_environments(SUITE)}


def findings(name: str) -> dict[str, str]:
    row = worker.probed(SUITE, PLANTED[name], lambda stage: None)
    return row["findings"]


def test_a_healthy_environment_has_no_finding() -> None:
    row = worker.probed(SUITE, PLANTED["healthy"], lambda stage: None)
    assert row["findings"] == {}
    assert (row["figures"]["gold"], row["figures"]["gold_n"], row["figures"]["refusal"]) == (1.0, 20, 0.0)


def test_a_score_that_pays_every_text_is_found() -> None:
    found = findings("generous")
    assert found.keys() == {"idle paid", "constant paid", "right answer unpaid", "crash KeyError"}
    assert "'{}'" in found["crash KeyError"]
    assert "2 of 20 right answers" in found["right answer unpaid"]


def test_a_frequent_answer_is_found() -> None:
    assert "the constant answer 'yes' earns 0." in findings("often")["constant paid"]


def test_an_ignored_seed_and_a_wrong_range_are_found() -> None:
    found = findings("dice")
    assert {"not deterministic", "range"} <= found.keys()
    assert "the reward 2 after 'roll' is not in 0 to 1" in found["range"]


def test_a_seldom_draw_without_a_seed_is_named_as_such() -> None:
    with probe.global_seed(5):  # the first two repetitions do not show the draw
        assert findings("seldom").keys() == {"not deterministic"}


def test_a_hang_is_found_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STEP_S", 0.1)
    row = worker.probed(SUITE, PLANTED["endless"], lambda stage: None)
    assert row["findings"].keys() == {"hang"}


def test_a_slow_first_call_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite may compile at the first call. A call that is slow each time is a hang."""
    monkeypatch.setattr(probe, "STEP_S", 0.1)
    assert findings("compiled") == {}
    assert findings("slow").keys() == {"hang"}


def test_a_player_that_raises_is_no_crash_of_the_environment() -> None:
    row = worker.probed(SUITE, PLANTED["misread"], lambda stage: None)
    assert row["excluded"].startswith("PlayerError: the random player raises IndexError: string index out of range")


def test_another_hash_seed_gets_the_turns_of_the_probe() -> None:
    """The random player of a suite may ignore its generator."""
    row = worker.probed(SUITE, PLANTED["whim"], lambda stage: None)
    again = worker.hashed(SUITE, PLANTED["whim"], lambda stage: None, json.loads(json.dumps(row["turns"])))
    assert again["digest"] == row["figures"]["digest"]


def test_a_process_that_dies_is_a_finding_with_its_stage() -> None:
    def dies(tell):
        tell("rubbish")
        os.kill(os.getpid(), 9)

    [[kind, text]] = worker.isolated(dies, 20.0)["findings"].items()
    assert kind == "died"
    assert "in the stage 'rubbish'" in text


def test_a_process_that_never_ends_is_a_finding() -> None:
    def waits(tell):
        tell("constant")
        while True:
            pass

    assert "in the stage 'constant'" in worker.isolated(waits, 0.2)["findings"]["hang"]


@pytest.mark.thorough
def test_a_command_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """A pass of the healthy environment. A row that is there is not played again."""
    rows = tmp_path / f"{SUITE}.probe.jsonl"
    done = [{"name": name, "rules": name, "excluded": "done before"} for name in PLANTED if name != "healthy"]
    rows.write_text("".join(json.dumps(row) + "\n" for row in done))
    command = [sys.executable, "-m", "benchmarks.report_card.worker", SUITE, str(tmp_path), "probe"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [line["name"] for line in lines] == [*(row["name"] for row in done), "healthy"]
    assert lines[-1]["findings"] == {}


@pytest.mark.thorough
def test_agentrl_check_finds_the_constant_answer() -> None:
    [mistake] = worker.checked(SUITE, PLANTED["often"], lambda stage: None)["check"]
    assert "a constant answer earns 0." in mistake
    assert worker.checked(SUITE, PLANTED["healthy"], lambda stage: None)["check"] == []


def test_an_action_of_several_parts_reaches_gymnasium() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    from agentrl_envs.adapters.gymnasium import read_action
    from benchmarks.report_card.suites.gymnasium import plain

    space = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,), seed=1)], seed=1)
    action = space.sample()
    number, vector = read_action(space, json.dumps(plain(space, action)), ())
    assert number == action[0]
    assert vector.tolist() == action[1].tolist()


def test_a_finding_without_a_cause_is_not_on_the_page() -> None:
    card = page.Card("reasoning_gym", "coin_flip", findings={"constant paid": "...", "hang": "..."})
    causes, rest = page.explained(card, confirmed.defects())
    assert [cause.id for cause in causes] == ["rg-coin"]
    assert rest == {"hang": "..."}


def test_the_page_is_that_of_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_each_reproduction_is_short_and_without_agentrl() -> None:
    for defect in confirmed.defects():
        assert "agentrl" not in defect.script, defect.id
        assert len(defect.script.splitlines()) <= 9, defect.id
    assert len({defect.id for defect in confirmed.defects()}) == len(confirmed.defects())
