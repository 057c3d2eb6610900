"""What `import agentrl` gives and costs, and that README's first example is true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl._util.loading import load_object
from agentrl.cli import app
from agentrl.init import write_project
from agentrl.testing import call, rollout

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = README + "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("training.md", "environments.md", "agents.md")
)
HEAVY = {"torch", "ray", "aiodocker", "sglang", "transformers", "aiohttp", "numpy"}


def test_the_public_names_are_these():
    assert " ".join(agentrl.__all__) == (
        "Action AgentEnv AgentRLError BadCall BadCallPolicy CallError CanaryError ConfigError Endpoint Engine "
        "EngineError Env EnvFactory EpisodeHooks "
        "EpisodeOptions Failure Generation Image InfraError Ledger LedgerError Limits "
        "LocalEngine Message Observation Raw Renderer RequestError ResumeError Reward SGLangEngine SamplingParams "
        "SandboxError SessionOptions Span StepResult StopReason Task TemplateError ToolCall "
        "ToolError ToolResult ToolSpec Trajectory TurnOptions adapt load_renderer resume_episode resume_seats "
        "run_episode run_seats tool tool_specs tools_of uncounted"
    )
    assert all(hasattr(agentrl, name) for name in agentrl.__all__)


@pytest.mark.thorough
def test_import_brings_nothing_heavy():
    code = f"import sys, agentrl; agentrl.Env; print(*sorted({HEAVY!r} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_an_import_without_a_use_imports_no_room():
    code = "import sys, agentrl; print(*(name for name in sys.modules if name.startswith('agentrl.')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_type_checkers_and_python_import_the_same_names():
    (block,) = [node for node in ast.parse(Path(agentrl.__file__).read_text()).body if isinstance(node, ast.If)]
    checked = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(checked) == sorted(agentrl.__all__)
    assert all(getattr(agentrl, name) is getattr(import_module(module), name) for name, module in checked.items())
    assert set(agentrl.__all__) <= set(dir(agentrl))


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 100


@pytest.fixture
def weather(tmp_path, monkeypatch):
    """README's package, where `from weather import Weather` finds it."""
    write_project("weather", folder=tmp_path)
    monkeypatch.chdir(tmp_path / "weather")
    monkeypatch.syspath_prepend(str(tmp_path / "weather"))
    yield load_object("weather:Weather")
    for name in [name for name in sys.modules if name.partition(".")[0] == "weather"]:
        del sys.modules[name]


def test_readme_shows_the_env_that_init_writes(weather):
    shown = re.search(r"```python\n# weather/env\.py.*?\n(.*?)```", README, re.DOTALL)[1]
    assert Path("weather/env.py").read_text().endswith(f"\n\n{shown}")


async def test_readmes_env_plays_the_episode_that_the_guide_shows(weather, tmp_path):
    guide = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    task = agentrl.Task(prompt="Weather in the city?", label="rainy", metadata={"place": "city"})
    trajectory = await rollout(weather(), task, [call("lookup", place="city"), "rainy"])
    assert (trajectory.reward, trajectory.stop) == (1.0, agentrl.StopReason.DONE)
    file = tmp_path / "episode.jsonl"
    file.write_text(json.dumps(trajectory.to_json()))
    shown = CliRunner().invoke(app, ["show", str(file)]).stdout.splitlines()
    promised = re.search(r"marks what is trained:\n\n(.*?)\n\n", guide, re.DOTALL)[1].splitlines()
    assert [line.strip() for line in promised if line.strip() not in map(str.strip, shown)] == []


async def test_the_guides_agent_is_played_as_it_is(tmp_path, monkeypatch):
    guide = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    (tmp_path / "my_env.py").write_text(re.search(r"```python\n(# my_env\.py\n.*?)```", guide, re.DOTALL)[1])
    (tmp_path / "my_agent.py").write_text(
        "async def answer(question, client):\n"
        "    return (await client.responses.create(model='any', input=question)).output_text\n"
    )
    monkeypatch.chdir(tmp_path)
    agent = load_object("my_env.py:MyAgent")
    trajectory = await rollout(agent(), agentrl.Task(prompt="Weather in Paris?", label="rainy"), ["rainy"])
    assert (trajectory.reward, trajectory.stop, len(trajectory.turns)) == (1.0, agentrl.StopReason.DONE, 1)
    assert trajectory.ledger.trained == trajectory.ledger.sampled > 0


def test_the_readmes_pictures_and_pages_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", README):
        assert (ROOT / "".join(target)).is_file()


@pytest.mark.thorough
def test_the_guides_episode_in_python(weather, capsys):
    code = re.search(r"## Episodes in Python\n.*?```python\n(.*?)```", GUIDES, re.DOTALL)[1]
    exec(code.replace("runs/first/model", "tiny"), {})
    assert re.search(r"<Trajectory .*sampled.*>", capsys.readouterr().out)


def test_the_guides_test_of_an_env(weather):
    guide = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    snippet = re.search(r"```python\n(import asyncio\n.*?)```", guide, re.DOTALL)[1]
    namespace: dict[str, object] = {}
    exec(snippet, namespace)
    namespace["test_looks_and_answers"]()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^(?:    )?agentrl (\w+)", GUIDES, re.MULTILINE))))
def test_readmes_commands_exist(command):
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_readmes_make_targets_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([\w-]+)", README)):
        assert f"\n{target}:" in makefile
