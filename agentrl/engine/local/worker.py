"""The worker thread of a LocalEngine: admits requests, steps the batch, and returns results."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import InvalidStateError
from contextlib import contextmanager
from weakref import WeakSet

from agentrl.engine.local.batch import Batch
from agentrl.engine.local.lockstep import Lockstep
from agentrl.engine.local.request import Failed, Finished, GenerateRequest, Outcome
from agentrl.errors import EngineError
from agentrl.types import Generation

log = logging.getLogger(__name__)

_at_exit: WeakSet[BatchWorker] = WeakSet()
_EXIT_S = 10.0


@atexit.register
def _end_threads() -> None:
    """End all threads at exit. A thread still in torch when the interpreter exits would abort the process."""
    for worker in list(_at_exit):
        worker.end(_EXIT_S)


class BatchWorker:
    """Owns the batch and the thread, but holds no reference to the engine.

    So an unused engine can be garbage-collected while the thread runs. The collection ends the thread.
    """

    def __init__(self, batch: Batch) -> None:
        self.version = "0"
        self.batch = batch
        self._pid = os.getpid()
        self._stepping = threading.Lock()  # held while the thread uses model or batch
        self._wake = threading.Condition()  # guards the fields below
        self.waiting: list[GenerateRequest] = []
        self._backlog: deque[GenerateRequest] = deque()
        self.running: set[GenerateRequest] = set()
        self._lockstep: Lockstep | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pausing = 0
        """The number of callers that wait for the thread to pause between two steps."""

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. If the thread is missing or has ended, it is started."""
        self._check_process()
        with self._wake:
            if self._closed:
                raise EngineError("LocalEngine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agentrl-local-engine", daemon=True)
                self._thread.start()
                _at_exit.add(self)
            if self._lockstep is not None:
                self._lockstep.ask(request.future)
            self.waiting.append(request)
            self._wake.notify()

    def abort(self, rid: str | None) -> None:
        self._check_process()
        with self._wake:
            for request in (*self.waiting, *self.running):
                request.aborted |= rid is None or request.rid == rid
            self._wake.notify()

    def stop(self) -> None:
        """Ask the thread to end, and do not wait for its end."""
        if os.getpid() == self._pid:  # a forked process has no thread, and locks may be held forever
            with self._wake:
                self._closed = True
                self._wake.notify()

    def end(self, seconds: float) -> None:
        """Ask the thread to end, and wait at most `seconds` for its end."""
        self.stop()
        if os.getpid() == self._pid and self._thread is not None:
            self._thread.join(seconds)

    async def close(self) -> None:
        """End the thread, and wait for its end. Waiting and running requests raise EngineError."""
        self.stop()
        if os.getpid() == self._pid and (thread := self._thread) is not None:
            await asyncio.to_thread(thread.join)

    @contextmanager
    def between_steps(self) -> Iterator[Batch]:
        """While the context is open, the thread does no step. A lock alone is not enough, because the thread would take
        the lock again too fast."""
        self._check_process()
        with self._wake:
            self._pausing += 1
        try:
            with self._stepping:
                yield self.batch
        finally:
            with self._wake:
                self._pausing -= 1
                self._wake.notify()

    @contextmanager
    def lockstep(self, episodes: int) -> Iterator[Lockstep]:
        """Start requests in waves. Raises EngineError while requests run or a lockstep is open."""
        self._check_process()
        with self._wake:
            if self._lockstep is not None or self.waiting or self.running:
                raise EngineError("lockstep begins on an idle engine: requests or another lockstep are still running")
            self._lockstep = lockstep = Lockstep(episodes, self._change)
        with self.between_steps() as batch:
            batch.clear()
        try:
            yield lockstep
        finally:
            with self._wake:
                self._lockstep = None
                self._wake.notify()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                "LocalEngine was made in the process that this one was forked from, and its thread is not here: "
                "make the engine in the process that uses it"
            )

    def _change(self, change: Callable[[], None]) -> None:
        with self._wake:
            change()
            self._wake.notify()

    # The thread

    def _work(self) -> None:
        error = "LocalEngine was closed before it answered"
        try:
            while self._collect():
                try:
                    with self._stepping:
                        self._turn()
                except Exception as exc:  # an error that Batch does not attribute to a row
                    log.exception("LocalEngine: a step failed")
                    self._fail_running(EngineError(f"a step failed: {type(exc).__name__}: {exc}"))
        except BaseException as exc:
            error = f"the thread of LocalEngine ended with {type(exc).__name__}: {exc}"
            raise
        finally:
            with self._wake:
                self._thread = None if not self._closed else self._thread
                self.running.update(self.waiting)
                self.waiting.clear()
                self._backlog.clear()
                unanswered = list(self.running)
                self.running.clear()
            self.batch.clear()
            for request in unanswered:
                _settle(request, EngineError(error))

    def _collect(self) -> bool:
        """Wait for requests, and move the requests that may begin to the backlog. Returns False if the worker is
        closed."""
        with self._wake:
            while not self._closed:
                if self._pausing:
                    self._wake.wait()
                    continue
                self._drop_waiting()
                idle = not self._backlog and not self.batch.requests
                lockstep, waiting = self._lockstep, len(self.waiting)
                if waiting and (lockstep is None or (idle and lockstep.is_complete(waiting))):
                    in_order = self.waiting if lockstep is None else sorted(self.waiting, key=GenerateRequest.content)
                    self._backlog.extend(in_order)
                    self.running.update(in_order)
                    self.waiting = []
                    return True
                if not idle:
                    return True
                patience = lockstep.patience(waiting) if lockstep and waiting else None
                if not self._wake.wait(patience) and lockstep is not None:
                    lockstep.go_on(waiting)
            return False

    def _drop_waiting(self) -> None:
        """Return results to aborted requests that have not begun, and remove requests without a caller."""
        for request in self.waiting:
            if request.aborted:
                self._answer(Finished(request, "abort"))
        self.waiting = [request for request in self.waiting if not request.aborted and not request.abandoned]

    def _turn(self) -> None:
        """Remove ended requests, admit new requests, then decode a token for each row."""
        for request in self.batch.requests:
            if request.aborted or request.abandoned:
                self.batch.remove(request)
                self._answer(Finished(request, "abort"))
        begin: list[GenerateRequest] = []
        while self._backlog and len(begin) < self.batch.room:
            request = self._backlog.popleft()
            if request.aborted or request.abandoned:
                self._answer(Finished(request, "abort"))
            else:
                begin.append(request)
        if begin:
            self._answer_all(self.batch.admit(begin))
        if self.batch.requests:
            self._answer_all(self.batch.step())

    def _answer_all(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._answer(outcome)

    def _answer(self, outcome: Outcome) -> None:
        request = outcome.request
        with self._wake:
            self.running.discard(request)
        if isinstance(outcome, Failed):
            _settle(request, outcome.error)
            return
        generation = Generation(
            request.tokens[len(request.input_ids) :],
            request.log_probs,
            outcome.reason,
            outcome.matched,
            weight_version=self.version,
            cached_tokens=request.cached_tokens,
            meta={"prompt_tokens": len(request.input_ids)},
            constrained=request.constrained,
        )
        _settle(request, generation)

    def _fail_running(self, error: EngineError) -> None:
        """Fail all requests that have begun. Waiting requests are not at fault."""
        self.batch.clear()
        queued = set(self._backlog)
        with self._wake:
            started = self.running - queued
            self.running &= queued
        for request in started:
            _settle(request, error)


def _settle(request: GenerateRequest, result: Generation | EngineError) -> None:
    if request.abandoned:  # a closed loop cannot be notified
        return
    try:
        if isinstance(result, EngineError):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)
    except InvalidStateError:
        log.debug("request %s was cancelled by its caller", request.rid)
