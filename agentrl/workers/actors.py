"""Workers as Ray actors, on any node of the cluster. Imported only where Ray runs."""

from __future__ import annotations

import asyncio
import atexit
import os
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError

from agentrl.errors import ConfigError
from agentrl.workers.base import NoPlaceError, WorkerLostError
from agentrl.workers.player import Player, answered, result_of

_AT_ONCE = 100_000
"""The most messages that an actor handles at the same time: more than there are episodes. Ray's default is 1,000."""
_PLACE_S = 120.0
"""The most seconds for Ray to start an actor. In a cluster without a free CPU, Ray waits for ever, without a
message."""
_END_S = 5.0
_VARIABLES = {"OMP_NUM_THREADS": "1", "RAY_USE_UVLOOP": "0"}
"""The environment variables of an actor: those of slime's own actors, with a single thread, because each worker has a
single CPU."""
_OPTIONS: dict[str, Any] = {
    "num_cpus": 1,
    "num_gpus": 0,
    "max_restarts": 0,  # the pool starts a new actor: a restarted actor has lost the job
    "max_task_retries": 0,  # tools have effects
    "max_concurrency": _AT_ONCE,
    "scheduling_strategy": "SPREAD",
    "runtime_env": {"env_vars": _VARIABLES},
}


class WorkerActor:
    """The process of a worker. The actor is not detached, so the actor ends with the owner."""

    def __init__(self, number: int) -> None:
        self._number, self._player = number, Player()

    def __repr__(self) -> str:
        """The prefix that Ray prints before the actor's output."""
        return f"worker {self._number}"

    async def where(self) -> str:
        return f"process {os.getpid()} on {ray.util.get_node_ip_address()}"

    async def ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return await answered(self._player, method, arguments)

    async def live(self) -> None:
        """Never returns. So its caller gets an error when the process ends."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Run the exit handlers of this process. Ray kills the process without running exit handlers."""
        atexit._run_exitfuncs()


class ActorTransport:
    """Starts workers as Ray actors. Each actor has a single CPU."""

    async def check(self, count: int) -> None:
        """Raises ConfigError if the cluster has too few CPUs."""
        total, free = (int(resources().get("CPU", 0)) for resources in (ray.cluster_resources, ray.available_resources))
        if free < count:
            raise ConfigError(
                f"workers: {count} need a CPU each, and of the {total} CPUs of the Ray cluster {free} are free; ask "
                "for fewer, or start Ray with more CPUs (ray start --num-cpus N)"
            )

    async def open(self, number: int) -> ActorLink:
        """Start an actor. Raises NoPlaceError if Ray has no place for an actor, and WorkerLostError if the actor ends
        at once.
        """
        actor = ray.remote(WorkerActor).options(name=None, **_OPTIONS).remote(number)
        try:
            async with asyncio.timeout(_PLACE_S):
                where = await actor.where.remote()
        except TimeoutError:
            ray.kill(actor)
            raise NoPlaceError(
                f"worker {number}: Ray has found no place for it in {_PLACE_S:g} s; the cluster needs one CPU for each "
                "worker, beside those of slime"
            ) from None
        except RayActorError as exc:
            raise WorkerLostError(f"worker {number} could not be started: {_reason(exc)}") from exc
        return ActorLink(number, actor, where)


class ActorLink:
    """The connection to a worker that is an actor."""

    def __init__(self, number: int, actor: Any, where: str) -> None:
        self._number, self._actor, self._where = number, actor, where
        self._lost: asyncio.Future[WorkerLostError] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.create_task(self._watch())

    @property
    def lost(self) -> asyncio.Future[WorkerLostError]:
        return self._lost

    def name(self) -> str:
        return f"worker {self._number} ({self._where})"

    async def ask(self, method: str, *arguments: Any) -> Any:
        if self._lost.done():
            raise self._lost.result().with_traceback(None)
        try:
            outcome = await self._actor.ask.remote(method, arguments)
        except RayActorError as exc:
            raise self._loss(exc) from exc
        return result_of(outcome, self.name())

    def tell(self, method: str, *arguments: Any) -> None:
        self._actor.ask.remote(method, arguments)

    def last_words(self) -> str:
        return ""  # Ray has printed the lines, after the worker's number

    async def end(self) -> None:
        if not self._lost.done():
            with suppress(RayActorError, TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._actor.leave.remote()
            ray.kill(self._actor)
            await asyncio.wait([self._watching], timeout=_END_S)

    async def _watch(self) -> None:
        try:
            await self._actor.live.remote()
        except RayActorError as exc:
            if not self._lost.done():
                self._lost.set_result(self._loss(exc))

    def _loss(self, exc: RayActorError) -> WorkerLostError:
        return WorkerLostError(f"{self.name()} ended: {_reason(exc)}")


def _reason(exc: RayActorError) -> str:
    """Ray's message about the end of an actor, which has many lines, as a single line."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return " ".join(lines)[:400]
