"""The process group over which a trainer broadcasts weights, formed as slime and SGLang form theirs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.errors import EngineError, RequestError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

GROUP_TIMEOUT_S = 120.0
"""Seconds after which a group whose members do not arrive has failed, and a broadcast whose sender is silent."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The tensors that a trainer is about to send, in order."""

    names: Sequence[str]
    dtypes: Sequence[str]
    """The types by torch's name, such as bfloat16."""
    shapes: Sequence[Sequence[int]]
    flattened: bool
    """Whether all tensors arrive as a single tensor of bytes, as in SGLang's FlattenedTensorBucket."""

    def receive(self, group: Any, device: Any, seconds: float) -> dict[str, torch.Tensor]:
        """The weights by name, from the group's first member. Blocks. Raises RequestError for tensors that cannot
        exist, and torch's errors if the sender is lost or silent for `seconds`."""
        import torch
        from torch.distributed import broadcast

        dtypes = [_dtype(name) for name in self.dtypes]
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, dtypes, strict=True)]
        if self.flattened:
            buffers = [torch.empty(sum(sizes), dtype=torch.uint8, device=device)]
        else:
            pairs = zip(self.shapes, dtypes, strict=True)
            buffers = [torch.empty(tuple(shape), dtype=dtype, device=device) for shape, dtype in pairs]
        works = [broadcast(buffer, src=0, group=group, async_op=True) for buffer in buffers]
        for work in works:
            work.wait(timedelta(seconds=seconds))
        if self.flattened:
            parts = torch.split(buffers[0], sizes)
            buffers = [
                part.clone().view(dtype).reshape(tuple(shape))  # a clone, because a view needs aligned bytes
                for part, dtype, shape in zip(parts, dtypes, self.shapes, strict=True)
            ]
        return dict(zip(self.names, buffers, strict=True))


class WeightGroups:
    """The groups that trainers have formed with this server, by name.

    Blocking calls run in daemon threads, so a lost trainer delays neither other requests nor the server's end.
    """

    def __init__(self, device: Any, seconds: float = GROUP_TIMEOUT_S) -> None:
        self._device, self._seconds = device, seconds
        self._groups: dict[str, tuple[Any, str]] = {}
        """Name -> the group, and its backend."""
        self._turn = asyncio.Lock()

    async def form(self, name: str, backend: str, address: str, port: int, rank: int, world_size: int) -> None:
        """Join a group as member `rank`. The first member listens at `address`. Raises RequestError for a name in use
        or an unknown backend, and EngineError if the members do not all arrive."""
        if name in self._groups:
            raise RequestError(f"the group {name!r} exists: send destroy_weights_update_group before a new one")
        if not _is_available(backend):
            raise RequestError(f"this server's torch has no backend {backend!r:.40}")
        method = f"tcp://{f'[{address}]' if ':' in address else address}:{port}"
        try:
            group = await _in_thread(lambda: _new_group(name, backend, method, rank, world_size, self._seconds))
        except RuntimeError as exc:
            raise EngineError(
                f"the group {name!r} of {world_size} members at {address}:{port} did not form within "
                f"{self._seconds:g} s: {_words(exc)}"
            ) from exc
        self._groups[name] = group, backend

    async def receive(self, name: str, tensors: Broadcast) -> dict[str, torch.Tensor]:
        """Receive the weights that the group's first member sends. A group whose broadcast fails is destroyed. Raises
        RequestError for a group that does not exist, and EngineError without a sender."""
        async with self._turn:
            if name not in self._groups:
                raise RequestError(
                    f"no group {name!r}, only {sorted(self._groups)}: send init_weights_update_group first"
                )
            group, backend = self._groups[name]
            device = "cpu" if backend == "gloo" else self._device
            try:
                return await _in_thread(lambda: tensors.receive(group, device, self._seconds))
            except RuntimeError as exc:
                await self.destroy(name)
                raise EngineError(
                    f"no weights came over the group {name!r}, which is destroyed now (the limit is "
                    f"{self._seconds:g} s): {_words(exc)}"
                ) from exc

    async def destroy(self, name: str) -> None:
        """Leave a group. Raises RequestError for a group that does not exist."""
        if name not in self._groups:
            raise RequestError(f"no group {name!r}, only {sorted(self._groups)}")
        group, _ = self._groups.pop(name)
        await _in_thread(lambda: _destroy(group))


def _new_group(name: str, backend: str, method: str, rank: int, world_size: int, seconds: float) -> Any:
    """torch's init_process_group without its side effect of the default group, so a process can be in several groups.

    The prefix of the store and the group's name have to be those of the other members: see
    slime.utils.distributed_utils.init_process_group.
    """
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d  # the names are not public
    timeout = timedelta(seconds=seconds)
    kind = c10d.Backend(backend)
    store, rank, world_size = next(c10d.rendezvous(method, rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    store = c10d.PrefixStore(name, store)
    make = c10d._new_process_group_helper
    options = "backend_options" if "backend_options" in inspect.signature(make).parameters else "pg_options"
    group, _ = make(world_size, rank, [], kind, store, group_name=name, timeout=timeout, **{options: None})
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    return group


def _is_available(backend: str) -> bool:
    from torch.distributed import is_backend_available

    return all(is_backend_available(part.rpartition(":")[2]) for part in backend.split(","))


def _destroy(group: Any) -> None:
    from torch.distributed import destroy_process_group

    with suppress(RuntimeError):  # of a group whose trainer is lost
        destroy_process_group(group)


def _dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RequestError(f"{name!r:.40} is no type of a tensor")
    return dtype


async def _in_thread(function: Callable[[], T]) -> T:
    """Run a function in a daemon thread. Threads of asyncio's own pool would delay the end of the process."""
    future = Future[T]()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function()
        except BaseException as exc:  # noqa: BLE001 - raised by the caller
            future.set_exception(exc)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="agentrl-weights", daemon=True).start()
    return await asyncio.wrap_future(future)


def _words(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:300]
