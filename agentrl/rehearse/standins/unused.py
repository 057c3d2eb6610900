"""Modules that miles imports and a rehearsal never calls: polars (180 MB), more of SGLang, transfers by RDMA."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

from agentrl.rehearse.standins.imports import after, before

_P2P = "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.p2p"
_TEMPLATES = "miles.utils.chat_template_utils"
_UNUSED = {
    "miles.dashboard.store": ("polars",),
    "miles.utils.dumper_utils": ("sglang.srt.debug_utils.dumper",),
    f"{_TEMPLATES}.template": ("sglang.srt.entrypoints.openai.protocol",),
    f"{_TEMPLATES}.deepseek": ("sglang.srt.entrypoints.openai", "sglang.srt.entrypoints.openai.protocol"),
    "miles.backends.megatron_utils.actor": (_P2P,),
}
"""Module of miles -> the modules that the import of the former needs."""


def register(importer: str, names: tuple[str, ...]) -> None:
    """Let `importer` find stand-ins for those of the modules that cannot be imported."""
    stand_ins: list[str] = []

    @before(importer)
    def add() -> None:
        for name in filter(_is_missing, names):
            sys.modules[name] = MagicMock()
            stand_ins.append(name)

    @after(importer)
    def remove(module: Any) -> None:
        """So that an Env sees that its own import is missing."""
        while stand_ins:
            del sys.modules[stand_ins.pop()]


def _is_missing(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return True
    return False


for _importer, _names in _UNUSED.items():
    register(_importer, _names)
