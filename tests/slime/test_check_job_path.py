"""A module that only the shell's PYTHONPATH has is not there in a job that Ray runs."""

from __future__ import annotations

import json
import os
import sys

import pytest

from agentrl.slime.check import check, read_argument

ENV = """
from agentrl import Env
class E(Env):
    def score(self, trajectory) -> float:
        return 1.0
def reward(trajectory) -> float:
    return 1.0
"""


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """`findings(env=, python_path=, ray=)`: those about a package that the shell's PYTHONPATH has."""
    name = f"pkg_{abs(hash(tmp_path)):x}"
    shell = tmp_path / "shell"
    shell.mkdir()
    (shell / f"{name}.py").write_text(ENV)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shell), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(shell))
    (tmp_path / "train.py").touch()

    def look(python_path=None, *, ray=True, flags=(), **keys):
        config = tmp_path / "agentrl.yaml"
        config.write_text(json.dumps({"agentrl": {"env": f"{name}:E", **keys}}))
        line = []
        if ray:
            line = ["ray", "job", "submit"]
            if python_path is not None:
                variables = {"PYTHONPATH": python_path.replace("SHELL", str(shell))}
                line += [f"--runtime-env-json={json.dumps({'env_vars': variables})}"]
            line += ["--"]
        line += ["python3", str(tmp_path / "train.py"), "--custom-config-path", str(config)]
        line += ["--custom-generate-function-path", "agentrl.adapt", *(word.replace("PKG", name) for word in flags)]
        return [(finding.level, finding.message) for finding in check(read_argument(line)) if name in finding.message]

    yield look
    sys.modules.pop(name, None)


def test_an_env_that_only_the_shells_path_has_is_an_error(findings):
    (level, text) = findings("/root/Megatron-LM")[0]
    assert level == "error"
    assert "is found here by the shell's PYTHONPATH" in text
    assert "--runtime-env-json" in text


def test_without_a_path_of_the_jobs_own_it_depends_on_how_ray_was_started(findings):
    assert [level for level, _ in findings()] == ["warning"]


def test_the_reward_and_functions_of_flags_as_well(findings):
    found = findings("/root/Megatron-LM", flags=("--custom-rm-path", "PKG.reward"))
    assert any("--custom-rm-path" in text and level == "error" for level, text in found)


@pytest.mark.parametrize(("path", "ray"), [("/root/Megatron-LM:SHELL", True), ("SHELL/", True), (None, False)])
def test_nothing_is_said_where_the_job_has_it(findings, path, ray):
    assert findings(path, ray=ray) == []
