"""Serves slime/backends/megatron_utils/sglang.py and slime/backends/sglang_utils/sglang_engine.py."""

from agentrl.rehearse.standins.serving import kill_process_tree
from agentrl.rehearse.standins.tensors import MultiprocessingSerializer

__all__ = ["MultiprocessingSerializer", "kill_process_tree"]
