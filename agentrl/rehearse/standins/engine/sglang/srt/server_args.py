"""Serves slime/backends/sglang_utils/arguments.py and sglang_engine.py."""

from agentrl.rehearse.standins.server_args import ServerArgs

__all__ = ["ServerArgs"]
