"""LocalEngine: a Hugging Face causal LM in this process, batched, seeded and bit-reproducible."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager
from typing import Any

import torch

from agentrl.engine.base import Generation, SamplingParams
from agentrl.engine.local.batch import Batch, Finished, Request
from agentrl.engine.local.lockstep import Lockstep
from agentrl.engine.local.sampling import Sampling
from agentrl.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

_STUCK_S = 60.0


class LocalEngine:
    """Batches concurrent requests in one worker thread; callers may live in any number of event loops.

    `model` is used as it stands and by reference: a trainer may update its parameters in place while no request runs,
    and then sets `weight_version`. A turn's keys and values are kept for the next turn of its `session_id`, in at most
    `max_batch` slots, least recently used first out.

    Raises ConfigError for a model whose attention it cannot batch.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        max_context: int | None = None,
        device: str | None = None,
    ) -> None:
        self._model = model.eval() if device is None else model.eval().to(device)
        self._vocabulary: int = model.config.vocab_size
        _check_attention(model.config)
        self._context = _context_length(model.config, max_context)
        self._batch = Batch(
            self._model, tokenizer, max_batch=max_batch, max_context=self._context, eos=_eos_tokens(model, tokenizer)
        )
        self._version = "0"
        self._stepping = threading.Lock()  # held while the worker uses model or batch
        self._wake = threading.Condition()  # guards the fields below
        self._waiting: list[Request] = []
        self._running: set[Request] = set()
        self._lockstep: Lockstep | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._held = 0
        """How many wait for the worker to pause between two steps."""

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Continue `input_ids`. See `Engine.generate`; parameters are read by `Sampling.read`.

        Without `max_new_tokens`, a response may fill the context. Stop text stays in the tokens.
        """
        sampling = Sampling.read(sampling_params)
        self._check(input_ids)
        if sampling.max_new_tokens == 0:
            return Generation([], [], "length", weight_version=self._version)
        request = Request(input_ids, sampling, session_id, rid)
        with self._wake:
            if self._closed:
                raise EngineError("LocalEngine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agentrl-local-engine", daemon=True)
                self._thread.start()
            self._waiting.append(request)
            self._wake.notify()
        return await asyncio.wrap_future(request.future)

    def _check(self, input_ids: Sequence[int]) -> None:
        if not len(input_ids):
            raise EngineError("the prompt is empty: an engine needs at least one token to continue")
        if len(input_ids) >= self._context:
            raise EngineError(
                f"the prompt has {len(input_ids)} tokens; the context holds {self._context}, response included"
            )
        if not 0 <= min(input_ids) <= max(input_ids) < self._vocabulary:
            raise EngineError(f"the prompt has a token id outside the model's vocabulary of {self._vocabulary}")

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all. Those not begun answer at once, the others after the step in progress."""
        with self._wake:
            for request in (*self._waiting, *self._running):
                request.aborted |= rid is None or request.rid == rid
            self._wake.notify()

    async def context_length(self) -> int:
        return self._context

    async def close(self) -> None:
        """Stop the worker. Requests that are waiting or running raise EngineError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)

    @property
    def weight_version(self) -> str:
        """Name of the weights, as each Generation reports it (the version its last token was sampled with)."""
        return self._version

    @weight_version.setter
    def weight_version(self, version: str) -> None:
        with self._between_steps():
            self._batch.forget()
            self._version = version

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: str) -> None:
        """Copy a state dict into the model, between two steps; requests that are running go on with the new weights.

        Names that are not parameters (buffers, tied copies) are ignored. Raises EngineError, having changed nothing,
        when a parameter is missing or has another shape.
        """
        parameters = dict(self._model.named_parameters())
        for name, parameter in parameters.items():
            if name not in weights or weights[name].shape != parameter.shape:
                found = f"shape {tuple(weights[name].shape)}" if name in weights else "nothing"
                raise EngineError(f"weights for {name}: found {found}, the model has shape {tuple(parameter.shape)}")
        with self._between_steps(), torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
            self._batch.forget()
            self._version = version

    @contextmanager
    def lockstep(self, episodes: int) -> Iterator[Lockstep]:
        """Take turns in waves, so that results do not depend on timing: see Lockstep.

            with engine.lockstep(len(tasks)) as lockstep:
                async def play(task: Task) -> Trajectory:
                    with lockstep.episode():
                        return await run_episode(...)
                await asyncio.gather(*map(play, tasks))

        All of the episodes must be able to run at the same time, and nobody else may ask the engine meanwhile. Begins
        with an empty prefix cache. Raises EngineError while requests run or another lockstep is open.
        """
        with self._wake:
            if self._lockstep is not None or self._waiting or self._running:
                raise EngineError("lockstep begins on an idle engine: requests or another lockstep are still running")
            self._lockstep = lockstep = Lockstep(episodes, self._notify)
        with self._between_steps():
            self._batch.clear()
        try:
            yield lockstep
        finally:
            with self._wake:
                self._lockstep = None
                self._wake.notify()

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Keep the worker from its next step. Waiting for its lock alone would not do: it takes it back too soon."""
        with self._wake:
            self._held += 1
        try:
            with self._stepping:
                yield
        finally:
            with self._wake:
                self._held -= 1
                self._wake.notify()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _work(self) -> None:
        """The worker thread: admit, step, answer; until closed."""
        backlog: deque[Request] = deque()
        while self._collect(backlog):
            try:
                with self._stepping:
                    self._turn(backlog)
            except Exception as exc:
                log.exception("LocalEngine: a forward pass failed")
                self._fail(EngineError(f"a forward pass failed: {type(exc).__name__}: {exc}"))
                self._batch.clear()
                backlog.clear()
        with self._wake:
            self._running.update(self._waiting)
            self._waiting.clear()
        self._fail(EngineError("LocalEngine was closed before it answered"))
        self._batch.clear()

    def _collect(self, backlog: deque[Request]) -> bool:
        """Wait for something to do and move what may begin to `backlog`. False: closed."""
        with self._wake:
            while not self._closed:
                if self._held:
                    self._wake.wait()
                    continue
                self._drop_waiting()
                idle = not backlog and not self._batch.requests
                if self._waiting and (self._lockstep is None or (idle and len(self._waiting) >= self._lockstep.alive)):
                    in_order = self._waiting if self._lockstep is None else sorted(self._waiting, key=Request.content)
                    backlog.extend(in_order)
                    self._running.update(in_order)
                    self._waiting = []
                    return True
                if not idle:
                    return True
                if not self._wake.wait(_STUCK_S) and self._waiting and self._lockstep is not None:
                    log.warning(
                        "lockstep: %d episodes wait for their turn; of %d alive, the rest neither ask nor leave",
                        len(self._waiting),
                        self._lockstep.alive,
                    )
            return False

    def _drop_waiting(self) -> None:
        """Answer requests aborted, and forget those cancelled, before they began."""
        for request in self._waiting:
            if request.aborted:
                self._answer(Finished(request, "abort"))
        self._waiting = [r for r in self._waiting if not r.aborted and not r.future.cancelled()]

    def _turn(self, backlog: deque[Request]) -> None:
        """Let requests leave and enter, then decode one token for each row."""
        for request in list(self._batch.requests):
            if request.aborted or request.future.cancelled():
                self._batch.remove(request)
                self._answer(Finished(request, "abort"))
        begin: list[Request] = []
        while backlog and len(begin) < self._batch.room:
            request = backlog.popleft()
            if request.aborted or request.future.cancelled():
                self._answer(Finished(request, "abort"))
            else:
                begin.append(request)
        if begin:
            self._batch.admit(begin)
        if self._batch.requests:
            for finished in self._batch.step():
                self._answer(finished)

    def _answer(self, finished: Finished) -> None:
        request = finished.request
        with self._wake:
            self._running.discard(request)
        generation = Generation(
            request.tokens[len(request.input_ids) :],
            request.log_probs,
            finished.reason,
            finished.matched,
            weight_version=self._version,
            cached_tokens=request.cached_tokens,
        )
        self._settle(request, generation)

    def _fail(self, error: EngineError) -> None:
        with self._wake:
            requests = list(self._running)
            self._running.clear()
        for request in requests:
            self._settle(request, error)

    @staticmethod
    def _settle(request: Request, result: Generation | EngineError) -> None:
        try:
            if isinstance(result, EngineError):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)
        except InvalidStateError:
            log.debug("request %s was cancelled by its caller", request.rid)


def _context_length(config: Any, wanted: int | None) -> int:
    holds: int | None = getattr(config, "max_position_embeddings", None)
    length = holds if wanted is None else wanted
    if length is None:
        raise ConfigError("the model's config has no max_position_embeddings: give LocalEngine max_context")
    if holds is not None and length > holds:
        raise ConfigError(f"max_context is {length}, but the model holds only {holds} positions")
    return length


def _check_attention(config: Any) -> None:
    implementation = getattr(config, "_attn_implementation", "sdpa")
    if implementation not in ("sdpa", "eager"):
        raise ConfigError(f"LocalEngine cannot use {implementation}: load the model with attn_implementation='sdpa'")
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        raise ConfigError(f"LocalEngine runs models with full attention only; this one has {', '.join(sorted(others))}")


def _eos_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that either of the two says ends a sequence."""
    tokens: set[int] = set()
    for found in (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id):
        tokens.update(found if isinstance(found, list | tuple) else [] if found is None else [found])
    return frozenset(tokens)
