"""The Env: how to write, configure, find and make one, and what it keeps for an episode."""

from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory

__all__ = ["Env", "EnvFactory"]
