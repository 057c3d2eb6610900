"""docs/adapters.md: its table of keys is what the classes say, and its Env is played as it stands there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from agentrl import EnvFactory, Task
from agentrl.testing import call, rollout
from agentrl_envs.adapters.games import GameConfig
from agentrl_envs.adapters.gymnasium import GymnasiumConfig
from agentrl_envs.adapters.mcp import MCPConfig
from agentrl_envs.adapters.openenv import OpenEnvConfig
from agentrl_envs.adapters.reasoning_gym import ReasoningGymConfig

GUIDE = (Path(__file__).parents[3] / "docs" / "adapters.md").read_text(encoding="utf-8")
CONFIGS = {
    "MCP": MCPConfig,
    "ReasoningGym": ReasoningGymConfig,
    "TextArena, Gem, Gymnasium": GameConfig,
    "Gymnasium": GymnasiumConfig,
    "OpenEnv": OpenEnvConfig,
}


def keys() -> str:
    """The table, which replaces the one in the guide where they differ."""
    lines = ["| adapter | key | default | |", "|---|---|---|---|"]
    for name, config in CONFIGS.items():
        own = {key: info for key, info in config.model_fields.items() if config is GameConfig or _own(config, key)}
        for key, info in own.items():
            default = "" if info.is_required() else f"`{json.dumps(info.get_default(call_default_factory=True))}`"
            said = " ".join((info.description or "").split()).replace("|", "\\|")
            assert said, f"{config.__name__}.{key} has no docstring"
            lines.append(f"| {name} | `{key}` | {default} | {said} |")
    return "\n".join(lines)


def _own(config: type, key: str) -> bool:
    return not issubclass(config, GameConfig) or key not in GameConfig.model_fields


def test_the_table_of_keys_is_what_the_classes_say() -> None:
    told = re.search(r"<!-- keys -->\n(.*?)\n<!-- end of keys -->", GUIDE, re.DOTALL)
    assert told is not None
    assert told[1] == keys(), f"replace the table by:\n{keys()}"


async def test_the_guides_env_is_played_as_it_stands(tmp_path, renderer):
    pytest.importorskip("mcp")
    source = re.search(r"```python\n(# clock_env\.py.*?)```", GUIDE, re.DOTALL)
    assert source is not None
    (tmp_path / "clock_env.py").write_text(source[1])
    server = {"command": sys.executable, "args": [str(Path(__file__).with_name("odd_mcp_server.py"))]}
    env = f"{tmp_path}/clock_env.py:Clock"

    assert EnvFactory(env).make().config.command == "mcp-server-time"
    async with EnvFactory(env, server) as envs:
        assert len([*envs.cls.tasks(None, "eval")]) == 5
        t = await rollout(envs.make(), Task(label="09:00"), [call("does", text="mute"), "At 09:00."], renderer=renderer)
    assert t.reward == 1.0
