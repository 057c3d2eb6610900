"""Serves slime/backends/megatron_utils/sglang.py."""


def monkey_patch_torch_reductions() -> None:
    """Tensors go by value here, so torch's handles of GPU memory need no change."""
