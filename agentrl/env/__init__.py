"""The Env: how to write, configure, find and make an Env, and the state of an episode."""

from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory

__all__ = ["Env", "EnvFactory"]
