"""Find the running machines (MachineSnapshots) in the state of an Env, and remove machines that are no longer
needed."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from agentrl.errors import one_line
from agentrl.sandbox import MachineSnapshot

log = logging.getLogger("agentrl")

_releasing: set[asyncio.Task[None]] = set()
"""The running tasks that remove machines. asyncio itself keeps only weak references."""


class _Nowhere:
    def write(self, data: Any, /) -> int:
        return len(data)


class _MachineFinder(pickle.Pickler):
    """A pickler that collects the MachineSnapshots in an object."""

    def __init__(self) -> None:
        super().__init__(_Nowhere())
        self.machines: list[MachineSnapshot] = []

    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, MachineSnapshot):
            self.machines.append(obj)
        return NotImplemented


def machines_in(saved: Any) -> tuple[MachineSnapshot, ...]:
    """The machines in the result of `Env.snapshot`, at any depth."""
    finder = _MachineFinder()
    with suppress(Exception):  # the writer of the state reports the error
        finder.dump(saved)
    return tuple(dict.fromkeys(finder.machines))


async def release(machines: Iterable[MachineSnapshot]) -> None:
    """Remove machines, even if this call is cancelled. Errors are only logged, because every machine also expires."""
    tasks = [asyncio.create_task(_released(machine)) for machine in machines]
    _releasing.update(tasks)
    for task in tasks:
        task.add_done_callback(_releasing.discard)
    await asyncio.shield(asyncio.gather(*tasks))


async def _released(machine: MachineSnapshot) -> None:
    try:
        await machine.release()
    except Exception as exc:  # noqa: BLE001 - the back end's boundary
        log.warning("machine %s could not be removed yet: %s", machine.image, one_line(exc))
