"""The server that slime/backends/sglang_utils/sglang_engine.py starts in a process of its own."""

from agentrl.rehearse.standins.serving import launch_server

__all__ = ["launch_server"]
