"""SGLang as the engine of an embedded training run: a server that agentrl starts and ends, or a running server at a
URL."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from agentrl.engine.base import AsyncClosing, RequestFields
from agentrl.engine.sglang.client import SGLangEngine
from agentrl.engine.sglang.training import weights
from agentrl.engine.sglang.training.control import ServerControl
from agentrl.engine.sglang.training.flags import Launch, read_args, variables
from agentrl.engine.sglang.training.process import ProcessSettings, check_interpreter
from agentrl.engine.sglang.training.served import ServerGoneError, TrainingServer
from agentrl.engine.sglang.training.suitable import check_suitable
from agentrl.engine.table import TrainingParts
from agentrl.errors import ConfigError, EngineError, EngineLostError, RequestError
from agentrl.models import save_adapter
from agentrl.models.vision import Vision
from agentrl.types import Generation, SamplingParams

_log = logging.getLogger("agentrl")

_WEIGHTS, _CACHE = "weights", "kv_cache"
_RETRY_S = 3.0
"""Seconds during which requests to a server on this host are repeated. More would only delay the report that the server
is gone."""
_RESTARTS = 3
"""How many times a server is started again before the next update. A request that ends every server must end the
run."""
ALONE_SHARE, BESIDE_SHARE = 0.88, 0.5
"""The share of a GPU's free memory that the engine takes. ALONE_SHARE: for an engine that sleeps while the trainer
learns. BESIDE_SHARE: for an engine that does not sleep."""
_OPTIMIZER_BYTES = 8
"""Bytes of AdamW's two moments of a trained parameter. AdamW creates both at the first step, after the server has
started."""


class TrainedSGLang(AsyncClosing):
    """Samples from the weights in training, by an SGLang server on this host. The server is started on first use.

    `url` is the address of a running server. Without `url` agentrl starts a server with `python`, an interpreter with
    SGLang (default: this interpreter), and with your own flags `args`. The server ends with the run, even if the run is
    killed. If the server ends earlier, it is started again with the weights of the last update, and the requests are
    repeated. The log is `engine.log` in the run folder. `start_s`: the most seconds for the server to come up.

    `route`: what is sent at an update. `adapter`: only the LoRA adapter. `disk`: the whole model. The default depends
    on the model. `sleep`: whether the server releases memory while the trainer learns. auto: true on a GPU, if agentrl
    has started the server, and without `staleness`.

    The same seed does not give the same run: batches depend on timing. Raises ConfigError for contradictory settings,
    and on first use for a server that does not start, or is not suitable.
    """

    own_weights = True
    takes_grammars = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        training: TrainingParts,
        *,
        url: str | None = None,
        python: str | None = None,
        args: str | Sequence[str] = (),
        route: Literal["disk", "adapter"] | None = None,
        sleep: bool | Literal["auto"] = "auto",
        start_s: float = 600.0,
        vision: Vision | None = None,
    ) -> None:
        self._model, self._tokenizer, self._training, self._vision = model, tokenizer, training, vision
        self._adapter = weights.Adapter.of(model)
        _check_route(route, self._adapter)
        if sleep not in (True, False, "auto"):
            raise ConfigError(f"engine_config.sleep is {sleep!r}; write auto, true or false")
        self._url, self._args = url, read_args(args)
        self._python = str(Path(python).expanduser()) if python else sys.executable
        if url is not None and (python or self._args):
            raise ConfigError("engine_config.url names a server that runs already: leave out python and args")
        if sleep is True and training.own_weights:
            raise ConfigError("engine_config.sleep is true, and with staleness the engine never sleeps: leave one out")
        shares = training.device == "cuda" and url is None and not training.own_weights
        self._sleeps = shares if sleep == "auto" else bool(sleep)
        self._start_s = start_s
        self._server: TrainingServer | None = None
        self._client: SGLangEngine | None = None
        self.scratch: Path | None = None
        self._version: str | None = None
        """The version of the server's weights; None before the first update."""
        self._last: tuple[str, Path | None] | None = None
        """The last update: the version, and the folder of the weights if they are kept."""
        self._restart: asyncio.Task[None] | None = None
        self._restarts = 0
        """The number of restarts since the last update."""
        self._asleep: list[str] = []
        """The tags of the memory that the server has released."""
        self._name = ""
        """The name of the adapter in requests; "" without an adapter."""
        self._updates = 0
        self._prefix = "" if url is None else f"{secrets.token_hex(3)}-"

    @property
    def takes_images(self) -> bool:
        return self._vision is not None

    # Generating

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        """Continue `input_ids`; see `Engine.generate`. Raises EngineLostError if the server is gone for good."""
        while True:
            await self._restarted()
            server, client, version = self._server, self._client, self._version
            if server is None or client is None or version is None or self._asleep:
                raise EngineError(
                    "SGLang has no weights yet: a trainer wakes and updates it before episodes are played"
                )
            try:
                return await self._generated(server, client, version, input_ids, sampling_params, request)
            except ServerGoneError as gone:
                await self._replaced(server, gone)

    async def _generated(
        self,
        server: TrainingServer,
        client: SGLangEngine,
        version: str,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        request: RequestFields,
    ) -> Generation:
        try:
            generation = await client.generate(input_ids, sampling_params, **request)
        except RequestError as exc:
            if self._name and "lora" in str(exc).lower():
                raise EngineLostError(f"the server no longer has this run's adapter: {exc}") from exc
            raise
        except EngineError as exc:
            raise await server.judged(exc) from exc
        server.check()
        return self._of_version(generation, version)

    def _of_version(self, generation: Generation, version: str) -> Generation:
        """The generation. Raises EngineLostError if the server reports other weights than those of the latest
        update."""
        if self._adapter is not None:  # the server's own version belongs to the base, and never changes
            return replace(generation, weight_version=version, earlier_versions=())
        if generation.weight_version not in (None, version) or generation.earlier_versions:
            raise EngineLostError(
                f"SGLang sampled from weights {generation.weight_version!r}, and this run gave it {version!r}; "
                "does another program update it?"
            )
        return replace(generation, weight_version=version)

    async def abort(self, rid: str | None = None) -> None:
        if self._client is not None:
            await self._client.abort(rid)

    def forget(self, session_id: str) -> None:
        if self._client is not None:
            self._client.forget(session_id)

    async def context_length(self) -> int:
        return await (await self._started())[0].context_length()

    # Training

    async def wake(self) -> None:
        """Let the server take back the memory for the weights. `update` takes back the other memory."""
        _, server = await self._started()
        if _WEIGHTS in self._asleep:
            _free_cached_memory()
            try:
                await server.told(server.control.resume([_WEIGHTS]))
                self._asleep.remove(_WEIGHTS)
            except ServerGoneError as gone:
                await self._replaced(server, gone)

    async def update(self, model: Any, version: str) -> None:
        """Write the weights to a new folder, and let the server load the folder; see `TrainedEngine.update`."""
        _, server = await self._started()
        self._version, self._updates = None, self._updates + 1
        folder = self._new_folder(model)
        if self._adapter is None:
            weights.save_whole(model, self._tokenizer, folder, self._vision)
        else:
            save_adapter(model, folder)
        try:
            await self._load(folder, version)
        except ServerGoneError as gone:
            await self._replaced(server, gone)
            await self._load(folder, version)
        if self._last is not None and self._last[1] is not None and self._adapter is None:
            shutil.rmtree(self._last[1], ignore_errors=True)
        kept = self._training.own_weights or self._adapter is not None  # the learner's weights may change meanwhile
        self._last, self._restarts = (version, folder if kept else None), 0
        if not kept:
            shutil.rmtree(folder)

    async def _load(self, folder: Path, version: str) -> None:
        """Let the server load a folder of weights, and take back the memory for the cache."""
        client, server = await self._started()
        if self._adapter is None:
            await server.told(server.control.update_from_disk(str(folder), version))
        else:
            await self._load_adapter(client, server, folder)
        if _CACHE in self._asleep:
            await server.told(server.control.resume([_CACHE]))
            self._asleep.remove(_CACHE)
        self._version = version

    async def _load_adapter(self, client: SGLangEngine, server: TrainingServer, folder: Path) -> None:
        """Load the adapter under a new name, use this name in every request, and unload the previous adapter.

        Without a name in the request, the base model would respond, without any sign of the mistake.
        """
        before, name = self._name, folder.name
        await server.told(server.control.load_adapter(name, str(folder)))
        self._name, client.extra = name, {"lora_path": name}
        if before:
            try:
                await server.told(server.control.unload_adapter(before))
            except RequestError as exc:  # the server has dropped the adapter already, as the least recently used
                _log.info("%s", exc)
            # Only now, because a server that has dropped an adapter reads the folder again.
            shutil.rmtree(folder.with_name(before), ignore_errors=True)

    async def sleep(self) -> None:
        """Let the server release memory if `sleep` is set. The weights must then be sent again."""
        server = self._server
        if self._sleeps and server is not None and not self._asleep:
            self._version = None
            try:
                await server.told(server.control.until_idle())
                self._asleep = [_CACHE, _WEIGHTS]
                await server.told(server.control.release(self._asleep))
            except ServerGoneError as gone:
                await self._replaced(server, gone)
                await self.sleep()

    def _new_folder(self, model: Any) -> Path:
        """A new folder, with a name that this server has not seen."""
        if self.scratch is None:
            self.scratch = self._make_scratch(model)
        return self.scratch / f"{self._prefix}v{self._updates}"

    def _make_scratch(self, model: Any) -> Path:
        # A server at a URL may be in a container with a separate /dev/shm.
        return weights.scratch_folder(self._training.folder, weights.size_of(model), in_memory=self._url is None)

    # The server

    async def _started(self) -> tuple[SGLangEngine, TrainingServer]:
        """The client and the server. On first use, the server is started or checked. Raises ConfigError."""
        await self._restarted()
        if self._client is None or self._server is None:
            server = await (self._launch() if self._url is None else self._attach(self._url))
            vocab_size = self._model.config.get_text_config().vocab_size
            self._client = SGLangEngine(server.control.url, vocab_size=vocab_size, retry_s=_RETRY_S)
            server.when_it_ends(self._client.let_go)
            self._server = server
        return self._client, self._server

    async def _replaced(self, server: TrainingServer, gone: ServerGoneError) -> None:
        """Wait until a new server has the weights of the last update. Raises EngineLostError if the run must end."""
        if self._server is server and (self._restart is None or self._restart.done()):
            self._restart = asyncio.create_task(self._replace(gone))
        await self._restarted()

    async def _restarted(self) -> None:
        """Wait for a restart in progress. The end of the waiting request does not end the restart."""
        if self._restart is not None and asyncio.current_task() is not self._restart:
            await asyncio.shield(self._restart)

    async def _replace(self, gone: ServerGoneError) -> None:
        self._restarts += 1
        if self._url is not None or self._restarts > _RESTARTS:
            raise gone
        self._training.say(f"warning: {gone}; it is started again")
        await self._end_server()
        try:
            await self._started()
            version, folder = self._last or (None, None)
            if version is not None and folder is not None:
                await self._load(folder, version)
            elif version is not None:  # the learner rests, and its weights are those of the last update
                self._updates += 1
                folder = self._new_folder(self._model)
                weights.save_whole(self._model, self._tokenizer, folder, self._vision)
                await self._load(folder, version)
                shutil.rmtree(folder)
        except ConfigError as exc:
            raise EngineLostError(f"{gone}, and it did not start again: {exc}") from exc

    async def _attach(self, url: str) -> TrainingServer:
        server = TrainingServer(ServerControl(url))
        try:
            await check_suitable(
                server.control,
                self._model,
                self._adapter,
                self._training,
                sleeps=self._sleeps,
                images=self.takes_images,
            )
        except BaseException:
            await server.close()
            raise
        return server

    async def _launch(self) -> TrainingServer:
        training = self._training
        trains_image_side = self.takes_images and self._adapter is None
        environment = variables(self._python, training.device, image_side=trains_image_side)
        await asyncio.to_thread(check_interpreter, self._python, environment)
        self.scratch = self.scratch or self._make_scratch(self._model)
        launch = Launch(
            self._python,
            self.scratch / "base",
            f"agentrl-{secrets.token_hex(4)}",
            training.dtype,
            training.device,
            self._adapter,
            self._sleeps,
            self._memory_share(),
            self._args,
        )
        weights.save_whole(self._model, self._tokenizer, launch.model, self._vision)
        place = ProcessSettings(training.folder / "engine.log", environment, self.scratch)
        server = await TrainingServer.launch(launch, place, seconds=self._start_s, say=training.say)
        shutil.rmtree(launch.model)  # the server has loaded the model, and has a copy for waking up
        return server

    def _memory_share(self) -> float | None:
        """The share of the GPU's free memory for the server. Memory for the optimizer is left free.

        While the server sleeps, its memory is available for all other parts of learning.
        """
        if self._training.device != "cuda":
            return None
        if not self._sleeps:
            return BESIDE_SHARE
        _free_cached_memory()
        free, _ = torch.cuda.mem_get_info()
        trained = sum(parameter.numel() for parameter in self._model.parameters() if parameter.requires_grad)
        return float(max(ALONE_SHARE * (1 - _OPTIMIZER_BYTES * trained / free), 0.1))

    async def close(self) -> None:
        """End the server if agentrl has started it, and remove the written files. Safe to call twice."""
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        await self._end_server()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    async def _end_server(self) -> None:
        for part in (self._client, self._server):
            if part is not None:
                await part.close()
        self._client = self._server = None
        self._name, self._asleep = "", []


def _check_route(route: str | None, adapter: weights.Adapter | None) -> None:
    """Raises ConfigError for a route that is not possible with this model."""
    if route not in (None, "disk", "adapter"):
        raise ConfigError(f"engine_config.route is {route!r}; write disk or adapter, or leave it out")
    if route == "adapter" and adapter is None:
        raise ConfigError("engine_config.route is adapter, and there is none: set lora.rank, or leave route out")
    if route == "disk" and adapter is not None:
        raise ConfigError(
            "engine_config.route is disk, but an adapter that is merged into its model is rounded away: leave route out"
        )


def _free_cached_memory() -> None:
    """Release the device memory that torch has reserved."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
