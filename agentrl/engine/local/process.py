"""LocalEngine in a separate process, with separate weights: the engine plays while the trainer's weights change."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch

import agentrl
from agentrl.engine.base import AsyncClosing
from agentrl.engine.local.child import Order
from agentrl.engine.local.engine import token_ids
from agentrl.engine.local.sampling import Sampling
from agentrl.engine.local.shared_weights import SharedWeights
from agentrl.engine.table import TrainingParts
from agentrl.errors import ConfigError, EngineError, EngineLostError, RequestError
from agentrl.image import Image
from agentrl.models import save_model
from agentrl.models.vision import Vision
from agentrl.types import Generation, SamplingParams

_PROGRAM = "from agentrl.engine.local.child import main; main()"
_END_S = 5.0
"""Seconds for the process to end by itself, before a kill."""
_ERRORS: Mapping[str, type[EngineError | ConfigError]] = {"RequestError": RequestError, "ConfigError": ConfigError}
"""Errors of the process raised under the same class here."""

_member: ContextVar[int | None] = ContextVar("agentrl_process_member", default=None)


class ProcessEngine(AsyncClosing):
    """A LocalEngine in a separate process: the same tokens, seeds and lockstep, with a copy of the weights.

    The process starts on first use, in some seconds, and ends with this process, even after a kill. Ctrl-C does not
    reach the engine process. Printed output is in `engine.log` in the run folder. `update` copies the trained weights
    through shared memory. Raises EngineLostError if the process has ended, and on first use ConfigError for a model
    that LocalEngine cannot batch.
    """

    own_weights = True
    takes_grammars = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        training: TrainingParts,
        *,
        max_batch: int = 64,
        max_context: int | None = None,
        device: str | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.weight_version = "0"
        """The name of the weights."""
        self._model, self._tokenizer, self._training = model, tokenizer, training
        self._max_batch, self._max_context, self._device = max_batch, max_context, device or training.device
        self._vision = vision
        self._process: EngineProcess | None = None
        self._starting = asyncio.Lock()
        self._context = 0
        self._members = count()

    @property
    def takes_images(self) -> bool:
        return self._vision is not None

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        """Continue `input_ids`. See `LocalEngine.generate`."""
        sampling = Sampling.read(sampling_params)
        request = token_ids(input_ids), sampling, session_id, rid, _member.get(), tuple(images)
        process = await self._started()
        number, answer = process.ask("generate", *request)
        try:
            generation: Generation = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            process.cancel(number)
            raise
        return generation

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all. See `LocalEngine.abort`."""
        if self._process is not None:
            await self._process.answer("abort", rid)

    async def context_length(self) -> int:
        await self._started()
        return self._context

    async def update(self, model: Any, version: str) -> None:
        """Copy the trained parameters of `model` to the engine. No request may run."""
        process = await self._started()
        process.weights.write(_trained(model))
        await process.answer("update", version)
        self.weight_version = version

    async def sleep(self) -> None:
        """Do nothing: the engine plays while the trainer learns."""

    async def wake(self) -> None:
        """Start the process, if not started yet."""
        await self._started()

    @contextmanager
    def lockstep(self, episodes: int) -> Iterator[ProcessLockstep]:
        """Run turns in waves. See `LocalEngine.lockstep`. Raises EngineLostError if the process has ended."""
        process = self._process
        if process is None:
            raise EngineError("the engine has not started: a trainer wakes it before episodes are played")
        process.tell("lockstep", episodes)
        try:
            yield ProcessLockstep(process, self._members)
        finally:
            process.tell("end")

    async def _started(self) -> EngineProcess:
        async with self._starting:
            if self._process is None:
                self._process, self._context = await self._start()
        return self._process

    async def _start(self) -> tuple[EngineProcess, int]:
        """Give the process a folder with the model, and wait until the model is loaded."""
        training, folder = self._training, self._training.folder / ".engine"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        process = EngineProcess(SharedWeights.like(_trained(self._model)), training.folder / "engine.log")
        try:
            save_model(self._model, self._tokenizer, folder, self._vision)
            order = Order(
                os.getpid(),
                str(folder),
                self._device,
                training.dtype,
                torch.get_num_threads(),
                self._max_batch,
                self._max_context,
                process.weights.slots,
            )
            context: int = await asyncio.wrap_future(process.begin(order))
        except BaseException as exc:
            await process.stop()
            if isinstance(exc, EngineLostError):
                raise ConfigError(str(exc)) from exc
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return process, context

    async def close(self) -> None:
        """End the process. Waiting and running requests raise EngineLostError. Safe to call twice."""
        if self._process is not None:
            await self._process.stop()


class ProcessLockstep:
    """The lockstep of the engine in the other process; see `Lockstep`."""

    def __init__(self, process: EngineProcess, members: Iterator[int]) -> None:
        self._process, self._members = process, members

    @contextmanager
    def episode(self) -> Iterator[None]:
        """Stay in this context while one episode uses the engine. Afterwards no wave waits for the episode."""
        member = next(self._members)
        self._process.tell("enter", member)
        token = _member.set(member)
        try:
            yield
        finally:
            _member.reset(token)
            self._process.tell("leave", member)

    def begin_again(self) -> None:
        """Announce that the current task's episode starts over. The episode counts from the next request on."""
        if (member := _member.get()) is not None:
            self._process.tell("again", member)


class EngineProcess:
    """The process, and the unanswered requests. Threads and event loops may share the object."""

    def __init__(self, weights: SharedWeights, log: Path) -> None:
        self.weights, self._log = weights, log
        self._connection, theirs = Pipe()
        self._writing, self._numbers = threading.Lock(), count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._ended = False
        descriptors = theirs.fileno(), weights.descriptor
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *map(str, descriptors)],
                env={**os.environ, "PYTHONPATH": _python_path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the trainer, and the trainer ends this process
            )
        theirs.close()
        self._reader = threading.Thread(target=self._read, name="agentrl-engine-process", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, order: Order) -> Future[Any]:
        """Order the engine. The answer is the length of the context."""
        future = self._expect(0)
        self._send(order)
        return future

    def ask(self, name: str, *arguments: object) -> tuple[int, Future[Any]]:
        """Send a message that gets an answer. Returns the number and the future answer. Raises EngineLostError."""
        number = next(self._numbers)
        future = self._expect(number)
        self._send((name, number, *arguments))
        return number, future

    async def answer(self, name: str, *arguments: object) -> Any:
        """Send a message, and wait for the answer."""
        return await asyncio.wrap_future(self.ask(name, *arguments)[1])

    def tell(self, name: str, *arguments: object) -> None:
        """Send a message without an answer. An ended process causes no error here: requests report the end."""
        with suppress(EngineLostError):
            self._send((name, *arguments))

    def cancel(self, number: int) -> None:
        """Drop a request without a waiting caller."""
        self._answers.pop(number, None)
        self.tell("cancel", number)

    async def stop(self) -> None:
        """End the process, and wait for the end, even if the caller is cancelled. Safe to call twice."""
        await asyncio.shield(asyncio.to_thread(self._stop))

    def _stop(self) -> None:
        self.tell("stop")
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self.weights.close()

    def _expect(self, number: int) -> Future[Any]:
        future: Future[Any] = Future()
        self._answers[number] = future
        return future

    def _send(self, message: object) -> None:
        with self._writing:
            if self._ended:
                raise self._lost()
            try:
                self._connection.send_bytes(pickle.dumps(message))
            except OSError as exc:
                raise self._lost() from exc

    def _read(self) -> None:
        """The thread that resolves the answers, until the process ends."""
        with suppress(EOFError, OSError):
            while True:
                number, error, result = pickle.loads(self._connection.recv_bytes())
                self._settle(number, None if error is None else _ERRORS.get(error[0], EngineError)(error[1]), result)
        with self._writing:
            self._ended = True
            self._connection.close()
        lost = self._lost()
        for number in list(self._answers):
            self._settle(number, lost, None)

    def _settle(self, number: int, error: EngineError | ConfigError | None, result: Any) -> None:
        future = self._answers.pop(number, None)
        if future is None:
            return
        with suppress(InvalidStateError):  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _lost(self) -> EngineLostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        words = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        ends = f"the log {self._log} ends: {words[-1]:.300}" if words else f"the log {self._log} is empty"
        return EngineLostError(f"the engine's process ended with status {self._process.returncode}; {ends}")


def _trained(model: Any) -> Mapping[str, torch.Tensor]:
    """The trained parameters: all, or with LoRA the adapter's parameters. Tied parameters appear once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _python_path() -> str:
    """The import path for the process: this agentrl first, then the present import path."""
    package_folder = str(Path(agentrl.__file__).parent.parent)
    return os.pathsep.join(filter(None, (package_folder, os.environ.get("PYTHONPATH", ""))))
