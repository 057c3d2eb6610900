"""The program that runs a LocalEngine for a parent process: see ProcessEngine.

The arguments are the parent's id and two inherited file descriptors: of a connection, and of the shared weights. The
first message, `begin`, describes the engine to load.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from agentrl._util import child
from agentrl.engine.local.sampling import Sampling
from agentrl.engine.local.shared_weights import SharedWeights, Slot
from agentrl.errors import AgentRLError, ConfigError
from agentrl.image import Image
from agentrl.types import Generation


@dataclass(frozen=True, slots=True)
class Order:
    """The data from which the child process builds the engine."""

    folder: str
    """The folder with a model and its tokenizer, or with an adapter. An adapter names its base model."""
    device: str
    dtype: str
    threads: int
    max_batch: int
    max_context: int | None
    slots: Sequence[Slot]
    """The places in shared memory of the weights that change."""


class EngineServer:
    """Responds to the requests of a connection. A response has an error (class and text) or None, and the result."""

    def __init__(self, connection: Connection, parent: int, weights: int) -> None:
        self._requests, self._outbox = child.of_parent(connection, parent), child.Outbox(connection)
        self._descriptor = weights
        self._running: dict[int, Future[Generation]] = {}

    def run(self) -> None:
        """Respond to requests until the connection or the parent process ends."""
        commands: Mapping[str, Callable[..., None]] = {
            "begin": self._begin,
            "generate": self._generate,
            "cancel": self._cancel,
            "abort": self._abort,
            "update": self._update,
        }
        for message in self._requests:
            number, name, arguments = pickle.loads(message)
            commands[name](*[number] if number else [], *arguments)
        self._outbox.close()

    def _begin(self, number: int, order: Order) -> None:
        try:
            self._engine = self._load(order)
        except ConfigError as exc:
            self._answer(number, exc)
        else:
            self._answer(number, self._context)

    def _load(self, order: Order) -> Any:
        import torch

        from agentrl.engine.local.engine import LocalEngine
        from agentrl.engine.local.fitness import context_length
        from agentrl.models import load_model, load_tokenizer
        from agentrl.models.vision import vision_of

        self._weights = SharedWeights(self._descriptor, order.slots)
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

    def _answer(self, number: int, result: object) -> None:
        failed = isinstance(result, BaseException)
        answer = ((type(result).__name__, str(result)), None) if failed else (None, result)
        self._outbox.put(pickle.dumps((number, answer)))

    # Generating

    def _generate(
        self,
        number: int,
        ids: list[int],
        sampling: Sampling,
        session_id: str,
        rid: str,
        images: Sequence[Image],
    ) -> None:
        try:
            future = self._engine._submit(ids, sampling, session_id=session_id, rid=rid, images=images)
        except AgentRLError as exc:
            self._answer(number, exc)
            return
        self._running[number] = future
        future.add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: Future[Generation]) -> None:
        """Send the result of a request. The engine's thread calls this method, or the thread that cancels the
        request."""
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


def main() -> None:
    parent, pipe, weights = map(int, sys.argv[1:])
    child.run(EngineServer(Connection(pipe), parent, weights).run)
