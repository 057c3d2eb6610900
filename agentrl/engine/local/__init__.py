"""The embedded engine: a PyTorch model in this process. Imports torch."""

from agentrl._util.torch_threads import wait_passively

wait_passively()  # before torch is imported below

from agentrl.engine.local.engine import LocalEngine  # noqa: E402

__all__ = ["LocalEngine"]
