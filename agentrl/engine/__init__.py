"""Inference engines: token ids in, token ids and their log-probs out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.engine.base import Engine, MessageEngine, TrainedEngine
from agentrl.engine.scripted import ScriptedEngine, Turn
from agentrl.types import ChatReply, Generation, SamplingParams

if TYPE_CHECKING:
    from agentrl.chat.engine import ChatEngine
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.sglang import SGLangEngine

__all__ = [
    "ChatEngine",
    "ChatReply",
    "Engine",
    "Generation",
    "LocalEngine",
    "MessageEngine",
    "SGLangEngine",
    "SamplingParams",
    "ScriptedEngine",
    "TrainedEngine",
    "Turn",
]

# Imported on use: aiohttp takes 0.2 s to import, torch more than a second.
_LAZY = {
    "LocalEngine": "agentrl.engine.local",
    "ChatEngine": "agentrl.chat.engine",
    "SGLangEngine": "agentrl.engine.sglang",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
