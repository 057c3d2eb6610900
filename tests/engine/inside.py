"""The parts of an engine that no user sees: running requests and their memory, HTTP sessions, processes and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.local.process import EngineProcess, ProcessEngine
    from agentrl.engine.local.worker import BatchWorker
    from agentrl.engine.sglang import SGLangEngine
    from agentrl.engine.sglang.connections import Connections
    from agentrl.engine.sglang.training.served import TrainingServer
    from agentrl.engine.sglang.training.trained import TrainedSGLang


def worker_of(engine: LocalEngine) -> BatchWorker:
    return engine._worker


def connections_of(engine: SGLangEngine) -> Connections:
    return engine._connections


def process_of(engine: ProcessEngine) -> EngineProcess:
    return engine._process


def server_of(engine: TrainedSGLang) -> TrainingServer:
    return engine._server
