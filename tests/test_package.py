"""What `import agentrl` gives and costs, and that README's first example is true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli import app
from agentrl.testing import call, rollout

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
HEAVY = {"torch", "ray", "docker", "sglang", "transformers", "aiohttp", "numpy"}


def test_the_public_names_are_these():
    assert " ".join(agentrl.__all__) == (
        "Action AgentRLError Ask CallError CanaryError ConfigError Engine EngineError Env Envs EpisodeOptions Failure "
        "Generation Host InfraError Ledger LedgerError Limits Message Observation ParseError ParsePolicy Raw "
        "RequestError Reward SamplingParams SandboxError Span StepResult StopReason Task TemplateError ToolCall "
        "ToolError ToolResult ToolSpec Trajectory adapt run_episode tool"
    )
    assert all(hasattr(agentrl, name) for name in agentrl.__all__)


def test_import_brings_nothing_heavy():
    code = f"import sys, agentrl; print(*sorted({HEAVY!r} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


async def test_readmes_env_and_the_episode_shown_under_it(tmp_path):
    source = re.search(r"```python\n# my_env\.py\n(.*?)```", README, re.DOTALL)
    namespace: dict[str, type[agentrl.Env]] = {}
    exec(source[1], namespace)
    task = agentrl.Task(prompt="What is the capital of France?", label="Paris")
    trajectory = await rollout(namespace["Capitals"](), task, [call("search", query="France"), "Paris"])
    assert (trajectory.reward, trajectory.stop) == (1.0, agentrl.StopReason.DONE)
    file = tmp_path / "episode.jsonl"
    file.write_text(json.dumps(trajectory.to_json()))
    shown = CliRunner().invoke(app, ["show", str(file)]).stdout.splitlines()
    promised = re.search(r"marks what is trained\):\n\n(.*?)\n\n", README, re.DOTALL)[1].splitlines()
    assert [line.strip() for line in promised if line.strip() not in map(str.strip, shown)] == []


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^    agentrl (\w+)", README, re.MULTILINE))))
def test_readmes_commands_exist(command):
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_readmes_make_targets_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([\w-]+)", README)):
        assert f"\n{target}:" in makefile
