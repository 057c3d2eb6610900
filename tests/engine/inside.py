"""The parts of an engine that no user sees: running requests and their memory, and the HTTP sessions by event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.local.worker import BatchWorker
    from agentrl.engine.sglang import SGLangEngine
    from agentrl.engine.sglang.connections import Connections


def worker_of(engine: LocalEngine) -> BatchWorker:
    return engine._worker


def connections_of(engine: SGLangEngine) -> Connections:
    return engine._connections
