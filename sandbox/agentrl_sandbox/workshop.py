"""The factory of a pool creates, checks and removes sandboxes within deadlines, and counts these events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress

from agentrl.errors import AgentRLError, ConfigError, SandboxError, one_line
from agentrl.sandbox import Sandbox
from agentrl_sandbox.backend import Backend
from agentrl_sandbox.figures import Tally
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger("agentrl")

_PULLING_S, _MAKING_S, _REMOVING_S, _PING_S = 1800.0, 120.0, 60.0, 10.0
"""The most seconds for an action of a back end: preparing an image, and creating, removing and checking a sandbox."""


class SandboxFactory:
    """Calls the back end for a pool. An exception of the back end becomes an error of agentrl, or is logged."""

    def __init__(self, backend: Backend, tally: Tally, at_a_time: int) -> None:
        self._backend, self._tally = backend, tally
        self._images: dict[str, asyncio.Task[None]] = {}
        self._removing = asyncio.Semaphore(2 * at_a_time)

    async def make(self, spec: SandboxSpec) -> Sandbox:
        """Create and open a sandbox. Raises SandboxError, or ConfigError if the back end cannot enforce the spec.

        No await follows the opening, so a cancellation cannot lose the sandbox.
        """
        try:
            for image in spec.images:
                await self.prepare(image)
            began = asyncio.get_running_loop().time()
            sandbox = self._backend.sandbox(spec)
            ready_s = spec.services.ready_s if spec.services is not None else 0.0
            await _within(_MAKING_S + ready_s, sandbox.__aenter__(), "making a sandbox")
        except Exception as exc:  # the back end's boundary
            self._tally.failed += 1
            for image in spec.images:
                self._forget(image)
            raise _as_ours(exc) from exc
        self._tally.created += 1
        self._tally.creates.append(asyncio.get_running_loop().time() - began)
        return sandbox

    async def fault(self, sandbox: Sandbox, within_s: float | None = None) -> str:
        """Why a sandbox is no longer usable; empty for a usable sandbox. By default the sandbox must respond within
        seconds."""
        try:
            await _within(within_s or _PING_S, sandbox.ping(), "ping")
        except Exception as exc:  # noqa: BLE001 - the back end's boundary: after any error the sandbox is replaced
            return one_line(exc)
        return ""

    async def remove(self, sandbox: Sandbox) -> None:
        """Close a sandbox. A failed close is logged, and left to the back end's reaper."""
        with suppress(asyncio.CancelledError):  # an ending event loop cancels all tasks, once
            return await self._remove(sandbox)
        return await self._remove(sandbox)

    async def _remove(self, sandbox: Sandbox) -> None:
        try:
            async with self._removing:
                await _within(_REMOVING_S, sandbox.__aexit__(None, None, None), "removing it")
        except Exception as exc:  # noqa: BLE001 - the back end's boundary: no caller waits for the removal
            self._tally.left_behind += 1
            log.warning("sandbox %s could not be removed: %s", sandbox.sandbox_id, one_line(exc))
        else:
            self._tally.removed += 1

    async def prepare(self, image: str) -> None:
        """Prepare an image. Callers for the same image share a single preparation. Raises as `make` does."""
        if image not in self._images:
            preparing = _within(_PULLING_S, self._backend.prepare(image), f"image {image or '(base)'}")
            self._images[image] = asyncio.create_task(preparing, name=f"sandbox image {image}")
        try:
            await asyncio.shield(self._images[image])
        except Exception as exc:  # the back end's boundary
            self._forget(image)
            raise _as_ours(exc) from exc

    async def close(self) -> None:
        """Cancel the preparation of images."""
        for task in self._images.values():
            task.cancel()
        await asyncio.gather(*self._images.values(), return_exceptions=True)

    def _forget(self, image: str) -> None:
        """Ask the back end for the image again the next time."""
        if image in self._images and self._images[image].done():
            del self._images[image]


async def _within(seconds: float, work: Awaitable[object], subject: str) -> None:
    try:
        async with asyncio.timeout(seconds) as deadline:
            await work
    except TimeoutError as exc:
        if not deadline.expired():
            raise
        raise SandboxError(f"{subject} took longer than {seconds:g} s") from exc


def _as_ours(exc: Exception) -> AgentRLError:
    """The exception as an error of agentrl. A ConfigError, which is the user's fault, is unchanged. All other
    exceptions become SandboxErrors."""
    return exc if isinstance(exc, ConfigError | SandboxError) else SandboxError(one_line(exc))
