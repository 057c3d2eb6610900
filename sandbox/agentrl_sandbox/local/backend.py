"""The back end of local sandboxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from agentrl.errors import ConfigError
from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.local.sandbox import LocalSandbox
from agentrl_sandbox.spec import SandboxSpec


class LocalBackend:
    """Creates sandboxes without isolation. Choosing this back end by name means that the code is trusted."""

    name = "local"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> LocalSandbox:
        """See `Backend.sandbox`. Only the spec's memory and file size are enforced, for each process alone."""
        if spec.hosts:
            raise ConfigError("local sandboxes reach whatever this machine reaches; use docker for a list of hosts")
        return LocalSandbox(spec, trusted=True)

    async def prepare(self, image: str) -> None:
        """Do nothing: commands run on this machine."""

    async def list(self) -> Sequence[FoundSandbox]:
        """Always empty: a local sandbox ends with the owner and leaves no trace."""
        return []

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """Do nothing: `list` is always empty."""
