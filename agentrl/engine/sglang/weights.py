"""The server's endpoints for a trainer: new weights, the memory of the engine, and the check that weights arrive.

Requests and responses are those of SGLang, as slime and miles use them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agentrl.engine.base import Engine
from agentrl.engine.sglang.admission import Admission
from agentrl.engine.sglang.bodies import read_body, read_json
from agentrl.engine.sglang.weight_bodies import (
    UpdateFields,
    read_broadcast,
    read_folder,
    read_group,
    read_group_name,
    read_serialized,
    read_tags,
)
from agentrl.engine.sglang.weight_group import WeightGroups
from agentrl.errors import EngineError, RequestError

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

_Change = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

_BODY_BYTES = 4 << 30
"""The most bytes of a request's body. From a GPU a request has handles of tensors, from a CPU the values."""
_NAMED = 3
"""The most names of weights in an error."""
_NOTHING: Mapping[str, Any] = {}


class StatusError(EngineError):
    """An error with its own HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WeightEndpoints:
    """Changes the weights of an engine by request.

    Released memory cannot be used until a request resumes it. If `server_args` has `enable_memory_saver`, and not
    `enable_weights_cpu_backup`, released weights are also lost, as in SGLang: the engine then refuses to generate until
    each weight was sent anew.
    """

    def __init__(
        self, engine: Engine, admission: Admission, server_args: Mapping[str, Any], group_timeout: float
    ) -> None:
        self._engine: Any = engine
        self._admission = admission
        self._groups = WeightGroups(getattr(engine, "device", "cpu"), group_timeout)
        saver, backup = (bool(server_args.get(f"enable_{name}")) for name in ("memory_saver", "weights_cpu_backup"))
        self._loses_weights = saver and not backup
        self._released: set[str] = set()
        self._lost: set[str] = set()
        """The weights that were released, and not sent since."""
        self._snapshot: Mapping[str, torch.Tensor] = {}
        self._types: dict[str, torch.dtype] = {}
        """Name -> the type in which a trainer sent the weights."""
        self._running: set[asyncio.Future[Mapping[str, Any]]] = set()

    def routes(self) -> list[web.RouteDef]:
        changes: Mapping[str, _Change] = {
            "update_weights_from_disk": self._update_from_disk,
            "update_weights_from_tensor": self._update_from_tensor,
            "update_weights_from_distributed": self._update_from_distributed,
            "init_weights_update_group": self._form_group,
            "destroy_weights_update_group": self._destroy_group,
            "update_weight_version": self._update_version,
            "begin_weight_update": self._do_nothing,
            "end_weight_update": self._do_nothing,
            "post_process_weights": self._do_nothing,
            "release_memory_occupation": self._release,
            "resume_memory_occupation": self._resume,
            "weights_checker": self._check,
        }
        posts = [web.post(f"/{name}", self._handler(change)) for name, change in changes.items()]
        return [*posts, web.get("/get_weight_version", self._get_version)]

    @property
    def version(self) -> str:
        """The version of the weights, or "default" for an engine without versions, as in SGLang."""
        return str(getattr(self._engine, "weight_version", None) or "default")

    def refuse_lost(self) -> None:
        """Raises StatusError with status 409 while the engine has no weights or no memory to generate."""
        if self._released:
            released = ", ".join(sorted(self._released))
            raise StatusError(
                409, f"/release_memory_occupation released {released}: send /resume_memory_occupation before"
            )
        if self._lost:
            raise StatusError(
                409,
                f"{len(self._lost)} weights were released and no update has sent them since ({_some(self._lost)}): "
                "update all weights after /resume_memory_occupation",
            )

    def _handler(self, change: _Change) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            body = read_json(await read_body(request, _BODY_BYTES) or b"{}")
            running = asyncio.ensure_future(change(body))
            self._running.add(running)
            running.add_done_callback(self._end)
            # A trainer that disconnects does not stop a broadcast or an update halfway.
            answer = await asyncio.shield(running)
            return web.json_response({"success": True, "message": "Success.", **answer})

        return handle

    def _end(self, change: asyncio.Future[Mapping[str, Any]]) -> None:
        self._running.discard(change)
        if not change.cancelled() and (exc := change.exception()) is not None:
            _log.debug("a change of the weights failed: %s", exc)

    def _of_engine(self, method: str) -> Any:
        """A method of the engine. Raises RequestError for an engine that cannot change its weights."""
        function = getattr(self._engine, method, None)
        if function is None:
            raise RequestError(
                f"{type(self._engine).__name__} has no weights that a request can change: serve the engine local"
            )
        return function

    def _refuse_released(self) -> None:
        if "weights" in self._released:
            raise StatusError(
                409, "/release_memory_occupation released the weights: send /resume_memory_occupation before an update"
            )

    # Updates

    async def _update_from_disk(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        update, folder = UpdateFields.read(body, "model_path", load_format="auto"), read_folder(body)
        load, version = self._of_engine("load_weights"), update.version or self.version

        def load_folder() -> None:
            from agentrl.models import read_weights  # torch, which an engine with weights has

            load(read_weights(folder), version)

        self._refuse_released()
        async with self._admission.changing(abort=update.abort):
            try:
                await asyncio.to_thread(load_folder)
            except Exception as exc:  # the folder's boundary: one answer hides the existence of folders
                _log.warning("update_weights_from_disk %r: %s: %s", folder, type(exc).__name__, exc)
                raise RequestError(
                    "update_weights_from_disk: model_path is not a folder with weights of this model; see the server's "
                    "log"
                ) from exc
            self._lost.clear()
        return {"message": "Succeeded to update model weights."}

    async def _update_from_tensor(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        update = UpdateFields.read(body, "serialized_named_tensors", "load_format")
        ranks, flattened = read_serialized(body)
        return await self._load(await asyncio.to_thread(_deserialize, ranks, flattened), update)

    async def _update_from_distributed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        update = UpdateFields.read(body, "names", "dtypes", "shapes", "group_name", "load_format")
        # The values are received before the names are checked, because the trainer waits for a receiver.
        return await self._load(await self._groups.receive(read_group_name(body), read_broadcast(body)), update)

    async def _load(self, weights: Mapping[str, torch.Tensor], update: UpdateFields) -> Mapping[str, Any]:
        load = self._of_engine("load_part")
        self._refuse_released()
        async with self._admission.changing(abort=update.abort):
            self._lost -= await asyncio.to_thread(load, weights, update.version)
            self._types |= {name: weight.dtype for name, weight in weights.items()}
        return _NOTHING

    async def _form_group(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._of_engine("load_part")
        await self._groups.form(*read_group(body))
        return _NOTHING

    async def _destroy_group(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._groups.destroy(read_group_name(body))
        return _NOTHING

    async def _do_nothing(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """SGLang unpacks and packs quantised weights around an update. The weights of LocalEngine are never packed."""
        return _NOTHING

    # Versions

    async def _update_version(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        version = body.get("new_version")
        if not isinstance(version, str) or not version:
            raise RequestError('update_weight_version takes {"new_version": "..."}')
        self._of_engine("load_part")
        if body.get("abort_all_requests", True) is True:
            await self._admission.abort()
        await asyncio.to_thread(setattr, self._engine, "weight_version", version)
        return {"message": f"Weight version updated to {version}", "new_version": version}

    async def _get_version(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    # Memory

    async def _release(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        tags, copy = read_tags(body), self._of_engine("copy_weights")
        if running := self._admission.running:
            raise RequestError(
                f"release_memory_occupation: {running} requests are running: wait until /flush_cache succeeds"
            )
        self._released.update(tags)
        if "weights" in tags and self._loses_weights:
            self._lost.update(await asyncio.to_thread(copy))
        return _NOTHING

    async def _resume(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        tags = read_tags(body)
        if strange := sorted(set(tags) - self._released):
            raise RequestError(f"resume_memory_occupation: {', '.join(strange)} is not released")
        self._released.difference_update(tags)
        return _NOTHING

    # The check that weights arrive

    async def _check(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        actions = {
            "snapshot": self._take_snapshot,
            "reset_tensors": self._reset,
            "compare": self._compare,
            "checksum": self._checksum,
        }
        action = body.get("action", "checksum")
        if action not in actions:
            raise RequestError(f"weights_checker: action must be one of {', '.join(actions)}")
        self._refuse_released()
        skipped = body.get("skip_tensor_list") or ()
        weights = await asyncio.to_thread(self._of_engine("copy_weights"))
        return await actions[action](
            {name: weight for name, weight in weights.items() if not any(part in name for part in skipped)}
        )

    async def _take_snapshot(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        self._snapshot = weights
        return _NOTHING

    async def _reset(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Replace all weights by noise, so that the comparison shows a weight that no update sends."""
        import torch

        async with self._admission.changing():
            noise = {name: torch.rand_like(weight) for name, weight in weights.items()}
            await asyncio.to_thread(self._engine.load_part, noise)
        return _NOTHING

    async def _compare(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Raises RequestError unless the weights are those of the snapshot, rounded to the type of the trainer."""
        if not self._snapshot:
            raise RequestError('weights_checker: "compare" needs a "snapshot" before')
        snapshot, self._snapshot = self._snapshot, {}
        different = {name for name in weights.keys() & snapshot if not self._same(name, weights[name], snapshot[name])}
        if different:
            raise RequestError(
                f"weights_checker: {len(different)} of {len(weights)} weights differ from the snapshot "
                f"({_some(different)})"
            )
        return _NOTHING

    def _same(self, name: str, weight: torch.Tensor, before: torch.Tensor) -> bool:
        import torch

        kind = self._types.get(name, weight.dtype)
        return torch.equal(weight.to(kind), before.to(kind))

    async def _checksum(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        sums = await asyncio.to_thread(lambda: {name: _sha256(weight) for name, weight in weights.items()})
        whole = hashlib.sha256("".join(f"{name}{sums[name]}" for name in sorted(sums)).encode()).hexdigest()
        ranks = {f"{kind}_rank": 0 for kind in ("tp", "dp", "pp")}
        sizes = {f"{kind}_size": 1 for kind in ("tp", "dp", "pp")}
        place = {"role": "target", "rank": 0, "size": 1, **ranks, **sizes}
        return {"ranks": [{"checksums": sums, "per_gpu_checksum": whole, "parallelism_info": [place]}]}


def _deserialize(ranks: list[str], flattened: bool) -> dict[str, torch.Tensor]:
    """The weights by name, from all ranks of a trainer. Raises RequestError, and StatusError without sglang."""
    try:
        from sglang.srt.utils import MultiprocessingSerializer
        from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket
    except ImportError as exc:
        raise StatusError(
            501, f"update_weights_from_tensor needs the package sglang in the server's environment ({exc})"
        ) from exc
    weights: dict[str, torch.Tensor] = {}
    for rank in ranks:
        try:
            tensors = MultiprocessingSerializer.deserialize(rank)
            if flattened:
                tensors = FlattenedTensorBucket(**tensors).reconstruct_tensors()
            named = dict(tensors)
        except Exception as exc:  # the boundary of foreign code
            raise RequestError(f"serialized_named_tensors cannot be read: {type(exc).__name__}: {exc}") from exc
        for name, weight in named.items():
            if name in weights and not weights[name].equal(weight):
                raise RequestError(f"weights for {name}: two ranks sent different values")
            weights[name] = weight
    return weights


def _sha256(weight: torch.Tensor) -> str:
    import torch

    flat = weight.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:_NAMED])
