"""The class Env, its configuration and tools, and the lookup and creation of Envs."""

from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory

__all__ = ["Env", "EnvFactory"]
