"""Harbor task directories, unmodified: a folder with task.toml is loaded as a Problem.

A task names the folder in the metadata: `{"format": "harbor", "path": "tasks/hello"}`. Other keys are `base`,
`installed`, `network`, `keep` and `clean`, as `HarborSettings` explains.
"""

from agentrl_envs.coding.formats.harbor.compose_rules import CannotRunError
from agentrl_envs.coding.formats.harbor.task import HarborSettings, load, tasks_in

__all__ = ["CannotRunError", "HarborSettings", "load", "tasks_in"]
