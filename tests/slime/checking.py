"""A folder with a run's files, and what agentrl check says of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.slime.check import arguments, check, read_command

ENVS = '''
from agentrl import Env, tool


class Base(Env):
    @tool
    def look(self, what: str) -> str:
        """Look something up."""
        return what


class Scored(Base):
    def score(self, trajectory) -> float:
        return 1.0


class Resumable(Scored):
    def snapshot(self):
        return 1

    def restore(self, state):
        pass


class Replayed(Scored):
    deterministic = True


class Plain(Env):
    def step(self, action):
        pass

    def score(self, trajectory) -> float:
        return 1.0


def reward(trajectory) -> float:
    return 1.0


number = 3
'''


GOOD: dict[str, Any] = {
    "custom-generate-function-path": "agentrl.adapt",
    "custom-config-path": "agentrl.yaml",
    "custom-reward-post-process-path": "agentrl.slime.post_process_rewards",
    "custom-rollout-log-function-path": "agentrl.slime.log_rollout",
    "router-policy": "consistent_hashing",
    "prompt-data": "train.jsonl",
    "input-key": "prompt",
    "label-key": "label",
    "rollout-batch-size": 4,
    "n-samples-per-prompt": 8,
    "global-batch-size": 32,
    "rollout-max-response-len": 100,
    "rollout-max-context-len": 200,
    "max-tokens-per-gpu": 1000,
    "hf-checkpoint": "model",
    "save": "checkpoints",
    "colocate": True,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder as a user has it, but for a model that is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTRL_CONFIG", raising=False)
    monkeypatch.setattr(arguments, "HOSTS", ())  # slime is not installed, whatever other tests have imported
    monkeypatch.setitem(sys.modules, "sglang_router.router_args", None)  # the router is not installed either
    (tmp_path / "my_env.py").write_text(ENVS)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "label": "b"}\n')
    configure()
    return tmp_path


def configure(**keys: Any) -> None:
    Path("agentrl.yaml").write_text(yaml.safe_dump({"agentrl": {"env": "my_env.py:Scored", **keys}}))


def findings(**changes: Any) -> list[tuple[str, str]]:
    """What is found in the good flags, changed: `_` stands for -, None removes a flag."""
    flags = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return [(str(finding.level), finding.message) for finding in check(read_command(words(flags)))]


def words(flags: dict[str, Any]) -> list[str]:
    line = []
    for name, value in flags.items():
        if value is not None:
            values = value if isinstance(value, list) else [] if value is True else [value]
            line += [f"--{name}", *map(str, values)]
    return line


def serious(**changes: Any) -> list[tuple[str, str]]:
    return [(level, text) for level, text in findings(**changes) if level in ("error", "warning")]
