"""SWE-bench instances: parsed, specified as problems, and graded from the logs of their tests.

Grading recorded logs is proven; that the images of the data sets run here is not claimed.
"""

from agentrl_envs.coding.formats.swebench.grading import InstanceResult, grade_log
from agentrl_envs.coding.formats.swebench.instance import Instance, parse_instance, read_instances
from agentrl_envs.coding.formats.swebench.task import load

__all__ = ["Instance", "InstanceResult", "grade_log", "load", "parse_instance", "read_instances"]
