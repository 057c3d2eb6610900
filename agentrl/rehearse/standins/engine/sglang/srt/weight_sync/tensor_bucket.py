"""Serves slime/backends/megatron_utils/sglang.py."""

from agentrl.rehearse.standins.tensors import FlattenedTensorBucket

__all__ = ["FlattenedTensorBucket"]
