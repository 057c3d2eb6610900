"""HostedBackend: creates sandboxes with a class that has slime's protocol."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError
from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.hosted.sandbox import HostedSandbox, SandboxService
from agentrl_sandbox.owners import current, run_name
from agentrl_sandbox.spec import SandboxSpec


class HostedBackend:
    """Creates sandboxes of a service. `make(image)` returns a sandbox that is not entered yet: slime's E2BSandbox, or
    the result of your function. If `make` has a parameter `timeout`, it gets the spec's lifetime in seconds."""

    name = "hosted"

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._boxes: list[tuple[HostedSandbox, float]] = []

    @classmethod
    def at(cls, path: str) -> Self:
        """The back end of the class or function at `package.module:name` or `file.py:name`. Raises ConfigError."""
        if not path:
            raise ConfigError("hosted: name a class with slime's protocol: hosted:slime.agent.sandbox:E2BSandbox")
        factory = load_object(path)
        if not callable(factory):
            raise ConfigError(
                f"hosted: {path} is {type(factory).__name__}, not a class or function that makes a sandbox"
            )
        return cls(factory)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def sandbox(self, spec: SandboxSpec) -> HostedSandbox:
        """See `Backend.sandbox`."""
        takes = inspect.signature(self._make).parameters
        lifetime = {"timeout": round(spec.lifetime_s)} if "timeout" in takes else {}
        box = HostedSandbox(spec, cast(SandboxService, self._make(spec.image, **lifetime)))
        self._boxes = [(open_box, until) for open_box, until in self._boxes if not open_box.is_closed]
        self._boxes.append((box, time.time() + spec.lifetime_s))
        return box

    async def prepare(self, image: str) -> None:
        """Do nothing: the service has its images, and `sandbox` reports a missing image."""

    async def list(self) -> Sequence[FoundSandbox]:
        """The sandboxes of this process. The protocol cannot list sandboxes of other processes."""
        now = time.time()
        return [
            FoundSandbox(box.sandbox_id, box.spec.image, current(), run_name(), until, gone=now > until)
            for box, until in self._boxes
            if box.is_open
        ]

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """See `Backend.remove`. Only sandboxes of this process can be removed."""
        for box, _ in list(self._boxes):
            if box.sandbox_id in sandbox_ids:
                await box.close()
