"""Reads the bodies of requests that change the weights, as strictly as `bodies` reads the other requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agentrl.engine.sglang.bodies import refuse_unserved
from agentrl.engine.sglang.weight_group import Broadcast
from agentrl.errors import RequestError

MEMORY_TAGS = ("kv_cache", "weights", "cuda_graph")
"""SGLang's kinds of memory that a trainer may release."""
_FLATTENED = "flattened_bucket"
_HARMLESS = frozenset({"flush_cache", "torch_empty_cache", "is_async", "recapture_cuda_graph", "token_step"})
"""Fields without effect here: LocalEngine itself drops the cache of old weights."""
_SELECTORS: Mapping[str, Any] = {"selector": "all"}
"""miles' choice of the models of a server. A server of agentrl has a single model."""


@dataclass(frozen=True, slots=True)
class UpdateFields:
    """The fields that all updates of weights share."""

    version: str | None
    abort: bool
    """Whether running requests are aborted. Otherwise the update waits for their end."""

    @classmethod
    def read(cls, body: Mapping[str, Any], *fields: str, **defaults: Any) -> Self:
        """Read the shared fields. `fields` are the names of further fields, and `defaults` have the only value of a
        field. Raises RequestError with the name of the wrong field."""
        served = frozenset({"weight_version", "abort_all_requests", *fields})
        refuse_unserved(body, served, _HARMLESS, {**_SELECTORS, **defaults})
        version = body.get("weight_version")
        if not isinstance(version, str | None):
            raise RequestError("weight_version must be a string")
        return cls(version, body.get("abort_all_requests") is True)


def read_folder(body: Mapping[str, Any]) -> str:
    """The folder of /update_weights_from_disk. Raises RequestError."""
    path = body.get("model_path")
    if not isinstance(path, str) or not path:
        raise RequestError('update_weights_from_disk takes {"model_path": "FOLDER"}')
    return path


def read_serialized(body: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The serialised tensors of each rank in /update_weights_from_tensor, and whether they are flattened. Raises
    RequestError."""
    texts = body.get("serialized_named_tensors")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise RequestError("serialized_named_tensors must be a list of str, one for each rank")
    return texts, _is_flattened(body)


def read_broadcast(body: Mapping[str, Any]) -> Broadcast:
    """The tensors of /update_weights_from_distributed. Raises RequestError."""
    lists: list[Any] = [body.get(field) for field in ("names", "dtypes", "shapes")]
    if not all(isinstance(values, list) and len(values) == len(lists[0]) for values in lists):
        raise RequestError("names, dtypes and shapes must be lists of the same length")
    names, dtypes, shapes = lists
    if not all(isinstance(text, str) for text in (*names, *dtypes)) or len(set(names)) < len(names):
        raise RequestError("names and dtypes must be lists of str, and each name must be there once")
    if not all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes):
        raise RequestError("shapes must be lists of sizes")
    return Broadcast(names, dtypes, shapes, _is_flattened(body))


def read_group(body: Mapping[str, Any]) -> tuple[str, str, str, int, int, int]:
    """Name, backend, address, port, rank and size of a group, of /init_weights_update_group. Raises RequestError."""
    texts: list[Any] = [body.get(field, default) for field, default in _GROUP_TEXTS.items()]
    numbers: list[Any] = [body.get(field) for field in _GROUP_NUMBERS]
    if not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"{', '.join(_GROUP_TEXTS)} must be strings, and not empty")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise RequestError(f"{', '.join(_GROUP_NUMBERS)} must be integers, and not negative")
    name, backend, address = texts
    port, rank, world_size = numbers
    if not 0 < rank < world_size:
        raise RequestError(f"rank_offset {rank} must be above 0, the trainer's rank, and below world_size {world_size}")
    return name, backend, address, port, rank, world_size


_GROUP_TEXTS: Mapping[str, Any] = {"group_name": "weight_update_group", "backend": "nccl", "master_address": None}
_GROUP_NUMBERS = ("master_port", "rank_offset", "world_size")


def read_group_name(body: Mapping[str, Any]) -> str:
    """The name of a group. Raises RequestError."""
    name = body.get("group_name", _GROUP_TEXTS["group_name"])
    if not isinstance(name, str) or not name:
        raise RequestError("group_name must be a string, and not empty")
    return name


def read_tags(body: Mapping[str, Any]) -> Sequence[str]:
    """The kinds of memory to release or to resume. Without any tag all kinds. Raises RequestError."""
    tags = body.get("tags") or MEMORY_TAGS
    if not isinstance(tags, list | tuple) or not set(tags) <= set(MEMORY_TAGS):
        raise RequestError(f"tags must be a list of {', '.join(MEMORY_TAGS)}")
    return tags


def _is_flattened(body: Mapping[str, Any]) -> bool:
    load_format = body.get("load_format")
    if load_format not in (None, "auto", _FLATTENED):
        raise RequestError(f"load_format {load_format!r:.40} is not served here, only {_FLATTENED!r}")
    return bool(load_format == _FLATTENED)
