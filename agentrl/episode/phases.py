"""The bound on episodes in a phase at once: reset, step or score."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["reset", "step", "score"]


class PhaseSlots:
    """Slots for the bounded phases. Other phases have no bound.

    An episode waits for its slot outside of the phase's own deadline, such as `Limits.step_s`. Use PhaseSlots in a
    single event loop.
    """

    def __init__(self, at_once: Mapping[Phase, int]) -> None:
        self._slots = {phase: asyncio.Semaphore(count) for phase, count in at_once.items()}

    def of(self, phase: Phase) -> AbstractAsyncContextManager[None]:
        return self._slots.get(phase) or nullcontext()
