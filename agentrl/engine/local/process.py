"""LocalEngine in a separate process, with separate weights: the engine plays while the trainer's weights change."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl._util.children import ChildProcess, Requests, how_ended, import_path
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
_ERRORS: Mapping[str, type[EngineError | ConfigError]] = {"RequestError": RequestError, "ConfigError": ConfigError}
"""Class name -> the class of an error, for errors in the engine process that are raised with the same class in this
process."""


class ProcessEngine(AsyncClosing):
    """A LocalEngine in a separate process: the same tokens and seeds, with a copy of the weights.

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
        """The version of the weights."""
        self._model, self._tokenizer, self._training = model, tokenizer, training
        self._max_batch, self._max_context, self._device = max_batch, max_context, device or training.device
        self._vision = vision
        self._process: EngineProcess | None = None
        self._starting = asyncio.Lock()
        self._context = 0

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
        request = token_ids(input_ids), sampling, session_id, rid, tuple(images)
        requests = (await self._started()).requests
        number, answer = requests.ask("generate", *request)
        try:
            generation: Generation = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            requests.tell("cancel", number)
            raise
        return generation

    async def abort(self, rid: str | None = None) -> None:
        """End the request with the id `rid`, or all requests. See `LocalEngine.abort`."""
        if self._process is not None:
            await self._process.requests.answer("abort", rid)

    async def context_length(self) -> int:
        await self._started()
        return self._context

    async def update(self, model: Any, version: str) -> None:
        """Copy the trained parameters of `model` to the engine. No request may run."""
        process = await self._started()
        process.weights.write(_trained(model))
        await process.requests.answer("update", version)
        self.weight_version = version

    async def sleep(self) -> None:
        """Do nothing: the engine plays while the trainer learns."""

    async def wake(self) -> None:
        """Start the process, unless it runs."""
        await self._started()

    async def _started(self) -> EngineProcess:
        async with self._starting:
            if self._process is None:
                self._process, self._context = await self._start()
        return self._process

    async def _start(self) -> tuple[EngineProcess, int]:
        """Start the process with a folder that has the model, and wait until the model is loaded."""
        training, folder = self._training, self._training.folder / ".engine"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        process = EngineProcess(SharedWeights.like(_trained(self._model)), training.folder / "engine.log")
        try:
            save_model(self._model, self._tokenizer, folder, self._vision)
            order = Order(
                str(folder),
                self._device,
                training.dtype,
                torch.get_num_threads(),
                self._max_batch,
                self._max_context,
                process.weights.slots,
            )
            context: int = await process.requests.answer("begin", order)
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


class EngineProcess:
    """The engine process with its log and its weights. Threads and event loops may share the object."""

    def __init__(self, weights: SharedWeights, log: Path) -> None:
        self.weights, self._log = weights, log
        with log.open("ab") as output:
            child = ChildProcess(
                ["-c", _PROGRAM],
                variables={"PYTHONPATH": import_path()},
                output=output,
                descriptors=[weights.descriptor],
            )
        self.pid = child.pid
        self.requests = Requests(child, _read, self._lost)

    async def stop(self) -> None:
        """End the process, and wait for the end, even if the caller is cancelled. Safe to call twice."""
        await asyncio.shield(asyncio.ensure_future(self._stop()))

    async def _stop(self) -> None:
        await self.requests.end()
        self.weights.close()

    def _lost(self, status: int) -> EngineLostError:
        words = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        ends = f"the log {self._log} ends: {words[-1]:.300}" if words else f"the log {self._log} is empty"
        return EngineLostError(f"the engine's process ended {how_ended(status)}; {ends}")


def _read(answer: tuple[tuple[str, str] | None, Any]) -> Any:
    error, result = answer
    if error is not None:
        raise _ERRORS.get(error[0], EngineError)(error[1])
    return result


def _trained(model: Any) -> Mapping[str, torch.Tensor]:
    """The trained parameters, by name: all parameters, or with LoRA those of the adapter. Tied parameters appear
    once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
