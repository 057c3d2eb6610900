"""The fingerprint of a run tells whether runs have the same Env and the same tasks."""

from __future__ import annotations

import json
import sys

import pytest

from agentrl.train import train
from tests.train.toy_runs import TOY, quiet

ENV = "from agentrl import Env\n\n\nclass Small(Env):\n    def score(self, trajectory):\n        return {pay}\n"


@pytest.fixture
def digests(make_config, tmp_path, monkeypatch):
    """The fingerprint of a run without steps."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def of(name, **values):
        values = {"eval_data": tmp_path / "tasks.jsonl", "steps": 0, "out": tmp_path / name, **values}
        train(make_config(**values), console=quiet())
        return json.loads((tmp_path / name / "fingerprint.json").read_text())

    return of


@pytest.mark.thorough
def test_each_part_has_a_digest(digests, tmp_path):
    first = digests("first")
    assert digests("same") == first
    fewer = digests("fewer", eval_tasks=3)
    assert [key for key in first if fewer[key] != first[key]] == ["eval_tasks", "config"]
    row = {"prompt": "say 99", "label": 0.5, "id": "99"}
    (tmp_path / "other.jsonl").write_text(json.dumps(row) + "\n")
    other = digests("other", data=tmp_path / "other.jsonl")
    assert [key for key in first if other[key] != first[key]] == ["tasks", "config"]
    rewarded = digests("rewarded", reward=f"{TOY}:same")
    assert [key for key in first if rewarded[key] != first[key]] == ["env", "config"]


@pytest.mark.thorough
def test_a_resumed_run_with_changed_code_is_like_no_other(make_config, tmp_path):
    env = tmp_path / "small_env.py"
    config = make_config(env=f"{env}:Small", steps=0)
    for pay, resume, warned in (("0.0", False, False), ("0.5", True, True), ("0.5", True, False)):
        env.write_text(ENV.format(pay=pay))
        sys.modules.pop("small_env", None)
        console = quiet()
        train(config, resume=resume, console=console)
        digest = json.loads((tmp_path / "run" / "fingerprint.json").read_text())["env"]
        assert ("the code of the Env or of the reward has changed" in console.file.getvalue()) == warned
        assert len(digest.split()) == (1 if pay == "0.0" else 2)
