"""The back end of fake sandboxes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.fake.sandbox import FakeSandbox, Script
from agentrl_sandbox.spec import SandboxSpec


class FakeBackend:
    """Creates sandboxes that run no programs. `made` lists these sandboxes in the order of creation."""

    name = "fake"

    def __init__(self, script: Script | None = None) -> None:
        self.made: list[FakeSandbox] = []
        self._script = script
        self._specs: dict[str, tuple[SandboxSpec, float]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> FakeSandbox:
        """See `Backend.sandbox`."""
        box = FakeSandbox(self._script, workdir=spec.workdir)
        self.made.append(box)
        self._specs[box.sandbox_id] = (spec, time.time() + spec.lifetime_s)
        return box

    async def prepare(self, image: str) -> None:
        """Do nothing: a fake has no images."""

    async def list(self) -> Sequence[FoundSandbox]:
        """The open sandboxes of this back end."""
        now = time.time()
        return [
            FoundSandbox(box.sandbox_id, spec.image, "", "", deadline, gone=now > deadline)
            for box, (spec, deadline) in zip(self.made, self._specs.values(), strict=True)
            if box.is_open
        ]

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`."""
        for box in self.made:
            if box.sandbox_id in sandbox_ids:
                await box.__aexit__()
