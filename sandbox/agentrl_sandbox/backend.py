"""The Backend protocol: what makes, lists and removes sandboxes; and the table of back ends by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from agentrl.sandbox import Sandbox
from agentrl_sandbox.spec import SandboxSpec


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox that a back end found on this machine or engine, whoever made it."""

    sandbox_id: str
    image: str
    owner: str
    """As `agentrl_sandbox.owners` writes it: host, boot, process and start time."""
    run: str
    """The name of the run that made it."""
    deadline: float
    """Unix time after which it may be removed."""
    gone: bool
    """Its owner is gone, or its deadline has passed."""


class Backend(Protocol):
    """A way to make sandboxes. Entering it connects to what it needs and removes what earlier owners left behind.

    Raises SandboxError, naming the remedy, if it cannot work on this machine (no engine, no bubblewrap).
    """

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that is not open yet. Raises ConfigError for a spec that this back end cannot enforce."""
        ...

    async def prepare(self, image: str) -> None:
        """Have an image ready, so that opening a sandbox need not wait for it. Raises SandboxError if there is none."""
        ...

    async def list(self) -> Sequence[Found]:
        """All sandboxes of agentrl, those of other processes too."""
        ...

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """Remove sandboxes with all that runs in them. Those already gone are no error."""
        ...
