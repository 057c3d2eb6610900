"""The reaper removes sandboxes whose owner has ended or whose deadline has passed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from agentrl.errors import one_line
from agentrl_sandbox.backend import Backend
from agentrl_sandbox.owners import heartbeat

log = logging.getLogger("agentrl")

_EVERY_S = 60.0
_PATIENCE_S = 120.0
"""Seconds after which a sweep is abandoned, so that a hanging engine does not prevent the start of a run."""


_paused: ContextVar[bool] = ContextVar("agentrl_reaper_paused", default=False)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Within this context, entering a back end removes no sandboxes. Used to list and count sandboxes."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


@contextlib.asynccontextmanager
async def reaping(backend: Backend) -> AsyncIterator[None]:
    """Call `sweep` now, and then regularly while the context is open. A back end enters the context after
    connecting."""
    if _paused.get():
        yield
        return
    with heartbeat():
        await sweep(backend)
        timer = asyncio.create_task(_keep_sweeping(backend), name=f"{backend.name}-reaper")
        try:
            yield
        finally:
            timer.cancel()
            await asyncio.wait([timer])


async def sweep(backend: Backend) -> int:
    """Remove abandoned sandboxes, and return their number. Errors are logged and not raised."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            gone = [sandbox.sandbox_id for sandbox in await backend.list() if sandbox.gone]
            if gone:
                await backend.remove(gone)
    except Exception as exc:  # noqa: BLE001 - the reaper's boundary: the caller wants sandboxes, not a sweep
        log.warning("%s: leftover sandboxes could not be removed: %s", backend.name, one_line(exc))
        return 0
    if gone:
        log.info("%s: removed %d sandboxes whose owner is gone or whose time was over", backend.name, len(gone))
    return len(gone)


async def _keep_sweeping(backend: Backend) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        await sweep(backend)
