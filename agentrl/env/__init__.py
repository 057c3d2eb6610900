"""The Env: how one is written, configured, found and made, and what it keeps beside itself."""

from agentrl.env.env import Env, EnvFactory

__all__ = ["Env", "EnvFactory"]
