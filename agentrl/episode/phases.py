"""Limits on the number of episodes that are in the same phase (reset, step or score) at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["reset", "step", "score"]


class PhaseSlots:
    """A limited number of slots for each bounded phase. Other phases have no limit.

    The wait for a slot does not count towards the phase's deadline, such as `Limits.step_s`. Use PhaseSlots in a single
    event loop.
    """

    def __init__(self, at_once: Mapping[Phase, int]) -> None:
        self._slots = {phase: asyncio.Semaphore(count) for phase, count in at_once.items()}

    def of(self, phase: Phase) -> AbstractAsyncContextManager[None]:
        return self._slots.get(phase) or nullcontext()
