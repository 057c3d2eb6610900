"""Harbor task directories, unmodified: a folder with task.toml is loaded as a Problem.

A task names its folder in its metadata: `{"format": "harbor", "path": "tasks/hello"}`. Other keys are
`base`, `installed`, `network`, `keep` and `clean`, as `Settings` explains them.
"""

from agentrl_envs.coding.formats.harbor.environment import CannotRunError
from agentrl_envs.coding.formats.harbor.task import Settings, load, needs_network, tasks_in

__all__ = ["CannotRunError", "Settings", "load", "needs_network", "tasks_in"]
