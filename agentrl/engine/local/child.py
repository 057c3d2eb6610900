"""The program that runs a LocalEngine for a parent process: see ProcessEngine.

The arguments are two inherited file descriptors: of a connection, and of the shared weights. The connection's first
message describes the engine to load. The program ends with the connection or the parent: a killed trainer leaves no
engine.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from agentrl.engine.local.sampling import Sampling
from agentrl.engine.local.shared_weights import SharedWeights, Slot
from agentrl.errors import AgentRLError, ConfigError
from agentrl.image import Image
from agentrl.types import Generation

_POLL_S = 1.0
"""Seconds between two checks for the parent. A program started by the parent may hold the connection open."""


@dataclass(frozen=True, slots=True)
class Order:
    """The ingredients of the engine."""

    parent: int
    """The id of the ordering process."""
    folder: str
    """The folder of a model with the tokenizer, or of an adapter. An adapter names the base model."""
    device: str
    dtype: str
    threads: int
    max_batch: int
    max_context: int | None
    slots: Sequence[Slot]
    """The changing weights, in shared memory."""


class EngineServer:
    """Answers the messages of one connection.

    A message is a name with arguments. An answer is the request's number, an error (class and text) or None, and the
    result.
    """

    def __init__(self, connection: Connection, weights: int) -> None:
        self._connection, self._writing = connection, threading.Lock()
        self._order: Order = pickle.loads(connection.recv_bytes())
        self._weights = SharedWeights(weights, self._order.slots)
        self._running: dict[int, Future[Generation]] = {}
        self._plain = copy_context()
        self._members: dict[int, tuple[Context, AbstractContextManager[None]]] = {}
        """Episodes in lockstep. An episode's requests run in the context of the episode's member."""
        self._waves: AbstractContextManager[Any] | None = None

    def run(self) -> None:
        """Answer until the connection or the parent ends."""
        try:
            self._engine = self._load()
        except ConfigError as exc:
            self._answer(0, exc)
            return
        self._answer(0, self._context)
        commands: Mapping[str, Callable[..., None]] = {
            "generate": self._generate,
            "cancel": self._cancel,
            "abort": self._abort,
            "update": self._update,
            "lockstep": self._begin_lockstep,
            "enter": self._enter,
            "again": self._again,
            "leave": self._leave,
            "end": self._end_lockstep,
        }
        while (message := self._receive()) not in (None, ("stop",)):
            name, *arguments = message
            commands[name](*arguments)

    def _load(self) -> Any:
        import torch

        from agentrl.engine.local.engine import LocalEngine
        from agentrl.engine.local.fitness import context_length
        from agentrl.models import load_model, load_tokenizer
        from agentrl.models.vision import vision_of

        order = self._order
        torch.set_num_threads(order.threads)
        model = load_model(order.folder, device=order.device, dtype=order.dtype)
        parameters = dict(model.named_parameters())
        for slot in order.slots:
            parameters[slot.name].data = parameters[slot.name].data.to(getattr(torch, slot.dtype))
        self._context = context_length(model.config, order.max_context)
        tokenizer = load_tokenizer(order.folder)
        engine = LocalEngine(
            model,
            tokenizer,
            max_batch=order.max_batch,
            max_context=order.max_context,
            vision=vision_of(model, order.folder),
        )
        self._model = model
        return engine

    def _receive(self) -> Any:
        """The next message; None if there is no other process any more."""
        try:
            while not self._connection.poll(_POLL_S):
                if os.getppid() != self._order.parent:
                    return None
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def _answer(self, number: int, result: object) -> None:
        failed = isinstance(result, BaseException)
        answer = (number, (type(result).__name__, str(result)), None) if failed else (number, None, result)
        try:
            with self._writing:
                self._connection.send_bytes(pickle.dumps(answer))
        except OSError:
            os._exit(0)  # nobody reads any more

    # Generating

    def _generate(
        self,
        number: int,
        ids: list[int],
        sampling: Sampling,
        session_id: str,
        rid: str,
        member: int | None,
        images: Sequence[Image],
    ) -> None:
        context = self._plain if member is None else self._members[member][0]
        try:
            future = context.run(self._engine._submit, ids, sampling, session_id=session_id, rid=rid, images=images)
        except AgentRLError as exc:
            self._answer(number, exc)
            return
        self._running[number] = future
        future.add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: Future[Generation]) -> None:
        """Called in the engine's thread, or where a request is cancelled."""
        self._running.pop(number, None)
        with suppress(CancelledError):  # nobody waits for the result
            self._answer(number, future.exception() or future.result())

    def _cancel(self, number: int) -> None:
        if (future := self._running.get(number)) is not None:
            future.cancel()

    def _abort(self, number: int, rid: str | None) -> None:
        asyncio.run(self._engine.abort(rid))
        self._answer(number, None)

    def _update(self, number: int, version: str) -> None:
        tensors = self._model.state_dict()
        new = self._weights.tensors
        replaced = {tensors[name].data_ptr() for name in new}
        unchanged = {name: tensor for name, tensor in tensors.items() if tensor.data_ptr() not in replaced}
        self._engine.load_weights({**unchanged, **new}, version)
        self._answer(number, None)

    # Lockstep

    def _begin_lockstep(self, episodes: int) -> None:
        self._waves = self._engine.lockstep(episodes)
        self._lockstep = self._waves.__enter__()

    def _enter(self, member: int) -> None:
        context, episode = copy_context(), self._lockstep.episode()
        context.run(episode.__enter__)
        self._members[member] = context, episode

    def _again(self, member: int) -> None:
        self._members[member][0].run(self._lockstep.begin_again)

    def _leave(self, member: int) -> None:
        context, episode = self._members.pop(member)
        context.run(episode.__exit__, None, None, None)

    def _end_lockstep(self) -> None:
        if self._waves is not None:
            self._waves.__exit__(None, None, None)
            self._waves = None


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # signals are for the parent, and the parent ends this process
    pipe, weights = map(int, sys.argv[1:])
    status = 1
    try:
        EngineServer(Connection(pipe), weights).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # the parent shows the log's last line
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)  # torch's threads may be at work
