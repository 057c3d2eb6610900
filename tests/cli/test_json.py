"""`--json` of check, eval and train: one document on stdout and nothing else, whatever happens."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")

LOUD = '''
import sys
from agentrl import Env, InfraError, Task, TurnOptions

print("imported")


class Loud(Env):
    """Prints where it can. The reward is the share of even tokens, so a random model earns some."""

    turn_options = TurnOptions(stop=tuple("aeiou"))

    @classmethod
    def tasks(cls, config, split):
        print("tasks of", split)
        return [Task(prompt=f"{split} {number}", label=str(number)) for number in range(4)]

    def step(self, action):
        print("a step")
        return super().step(action)

    def score(self, trajectory):
        print("scored")
        sampled = [token for action in trajectory.actions for token in action.tokens]
        return sum(token % 2 == 0 for token in sampled) / max(len(sampled), 1)


class Broken(Loud):
    def score(self, trajectory):
        raise KeyError("oops")


class Gone(Loud):
    def score(self, trajectory):
        raise InfraError("the grader is gone")


def gold(task):
    print("the player")
    yield "i"
'''
SMALL = "{model: tiny, steps: 1, prompts_per_step: 2, group_size: 2, limits: {turns: 1, max_tokens_per_turn: 3}}"


@pytest.fixture(autouse=True)
def folder(folder):
    (folder / "loud.py").write_text(LOUD)
    (folder / "small.yaml").write_text(SMALL)
    return folder


def train(agentrl, env="Loud", *more):
    code = agentrl("train", f"loud.py:{env}", "--config", "small.yaml", "--out", "run", "--json", *more)
    return code, json.loads(agentrl.stdout)


@pytest.mark.thorough
def test_a_run_prints_its_outcome_alone(agentrl, folder):
    code, document = train(agentrl)
    assert (code, document["exit_code"], document["error"]) == (0, 0, None)
    assert document["outcome"] in ("learned", "unchanged", "worse")
    assert document["held_out"]["after_rl"]["tasks"] == 4
    assert (document["steps"], document["paths"]["model"]) == (1, "run/model")
    assert "rl 1/1" in agentrl.stderr
    assert "a step" in agentrl.stderr, "the Env's prints are not lost"

    again, refused = train(agentrl)
    assert (again, refused["outcome"], refused["held_out"]["after_rl"]) == (2, "failed", None), "not the older run's"
    assert refused["error"].startswith("error: --out run holds another run; add --resume to continue it")
    assert refused["error"] in agentrl.stderr

    assert train(agentrl, "Loud", "--resume", "--steps", "2")[1]["steps"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "code", "verdict", "error"),
    [("Broken", 1, "failed", "KeyError: 'oops'"), ("Gone", 3, "stopped", "step 1: no token can be trained")],
)
def test_a_run_that_ends_early_prints_the_reason(agentrl, env, code, verdict, error):
    ended, document = train(agentrl, env)
    assert (ended, document["exit_code"], document["outcome"]) == (code, code, verdict)
    assert error in document["error"]


def test_a_wrong_key_is_in_the_document(agentrl):
    code, document = train(agentrl, "Loud", "--set", "limit.turns=2")
    assert (code, document["outcome"], document["paths"]) == (2, "failed", {})
    assert "did you mean limits" in document["error"]


@pytest.mark.thorough
def test_an_evaluation_prints_figures_alone(agentrl):
    args = ("eval", "--model", "tiny", "--set", "limits.max_tokens_per_turn=3", "--json")
    assert agentrl(*args, "loud.py:Loud") == 0, agentrl.stderr
    assert json.loads(agentrl.stdout)["episodes"] == 4
    assert agentrl(*args, "loud.py:Gone") == 2
    assert json.loads(agentrl.stdout)["failed"] == 4
    assert agentrl(*args, "loud.py:Missing") == 2
    assert json.loads(agentrl.stdout)["exit_code"] == 2
    assert "Loud" in json.loads(agentrl.stdout)["error"]


@pytest.mark.thorough
def test_a_check_tells_the_sizes_of_the_gold_players_episodes(agentrl):
    assert agentrl("check", "loud.py:Loud", "--limit", "1", "--gold", "loud.py:gold", "--json") in (0, 1)
    sizes = json.loads(agentrl.stdout)["figures"]["gold"]
    assert (sizes["turns"], sizes["turn_tokens"]) == (1, 1), "a letter, at which the turn stops"
    assert sizes["tokens"] > 10


@pytest.mark.thorough
def test_a_check_prints_its_report_alone(agentrl):
    assert agentrl("check", "loud.py:Broken", "--limit", "1", "--json") == 1
    report = json.loads(agentrl.stdout)
    assert (report["passed"], report["counts"]["error"] > 0) == (False, True)
    assert all(finding["check"] and finding["message"] for finding in report["findings"])
    error = report["findings"][0]
    assert (error["level"], error["file"].rpartition("/")[2]) == ("error", "loud.py")
    assert error["line"] > 0
    assert error["remedy"]

    assert agentrl("check", "loud.py:Missing", "--json") == 2
    assert json.loads(agentrl.stdout)["exit_code"] == 2


@pytest.mark.thorough
def test_strict_decides_whether_warnings_pass(agentrl):
    args = ("check", "loud.py:Loud", "--limit", "1", "--json")
    assert agentrl(*args) == 0
    assert json.loads(agentrl.stdout)["passed"] is True
    assert agentrl(*args, "--strict") == 1
    assert json.loads(agentrl.stdout)["passed"] is False
