"""The Env: how to write, configure, find and make one, and what it keeps for an episode."""

from typing import Any

from agentrl._util.moved import old_name
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory

__all__ = ["Env", "EnvFactory"]


def __getattr__(name: str) -> Any:
    return old_name("agentrl.env.factory" if name == "load_env" else "agentrl.env.env", name)
