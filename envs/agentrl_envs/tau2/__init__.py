"""tau2-bench's retail and airline domains: tools over a database, a policy, a simulated user.

Tasks, databases and tools come from the package `inspect-evals` (MIT), which is imported on first use: pip install
inspect-evals==0.26.0
"""

from agentrl_envs.tau2.env import Tau2, Tau2Config
from agentrl_envs.tau2.players import gold, noop

__all__ = ["Tau2", "Tau2Config", "gold", "noop"]
