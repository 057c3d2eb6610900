"""The back end of bubblewrap sandboxes."""

from __future__ import annotations

from typing import Self

from agentrl.errors import SandboxError


class BubblewrapBackend:
    name = "bubblewrap"

    async def __aenter__(self) -> Self:
        raise SandboxError("bubblewrap sandboxes are not written yet")
