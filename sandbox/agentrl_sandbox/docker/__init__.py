"""Sandboxes as containers of a Docker Engine. Needs the extra `docker`."""

from agentrl_sandbox.docker.backend import DockerBackend
from agentrl_sandbox.docker.sandbox import DockerSandbox

__all__ = ["DockerBackend", "DockerSandbox"]
