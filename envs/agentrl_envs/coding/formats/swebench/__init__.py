"""SWE-bench instances: parse them, turn them into problems, and grade them from the logs of their tests.

The grading of recorded logs is tested. Whether the images of the data sets run here is not tested.
"""

from agentrl_envs.coding.formats.swebench.grading import InstanceResult, grade_log
from agentrl_envs.coding.formats.swebench.instance import Instance, parse_instance, read_instances
from agentrl_envs.coding.formats.swebench.task import load

__all__ = ["Instance", "InstanceResult", "grade_log", "load", "parse_instance", "read_instances"]
