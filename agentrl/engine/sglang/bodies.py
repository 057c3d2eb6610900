"""Reads the bodies of requests to the server strictly. An unsupported field is never ignored: the request is refused,
and the error names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn, Self, cast

from aiohttp import web

from agentrl.errors import RequestError
from agentrl.image import Image
from agentrl.types import SamplingParams

_MAX_NEW_TOKENS = 128  # SGLang's default
_TOKEN_IDS = 2**31
_GREEDY_BELOW = 1e-6  # SGLang's
_NEVER = -1e4  # a logit bias stronger than any logit
_MAX_TEMPERATURE = 1e6
_STOPS, _STOP_CHARACTERS = 256, 65_536
"""Limits on stop strings. _STOPS: their number. _STOP_CHARACTERS: the characters of all together. Every step of a
request searches all stop strings, which delays the other requests."""

# The parameters that an Engine obeys, with their types in JSON.
_OBEYED: Mapping[str, tuple[type, ...]] = {
    "temperature": (float, int),
    "top_p": (float, int),
    "top_k": (int,),
    "max_new_tokens": (int,),
    "stop": (str, list),
    "stop_token_ids": (list,),
    "sampling_seed": (int,),
}
# These change only `text`, or have no effect here.
_TEXT_ONLY = frozenset({"skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens", "stream_interval"})
# Other parameters of SGLang, with the values without effect.
_PARAMETER_DEFAULTS: Mapping[str, Any] = {
    "min_p": 0.0,
    "min_new_tokens": 0,
    "n": 1,
    "ignore_eos": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_SERVED = frozenset({"text", "input_ids", "sampling_params", "return_logprob", "stream", "rid"})
_EXPERTS = frozenset({"return_routed_experts", "routed_experts_start_len"})
# Fields of SGLang's GenerateReqInput that route, label or log a request without effect on the answer.
_HARMLESS = frozenset(
    {
        "cache_salt", "conversation_id", "custom_labels", "data_parallel_rank", "external_trace_header", "extra_key",
        "kv_hints", "log_metrics", "modalities", "no_logs", "priority", "received_time", "routed_dp_rank",
        "routing_key", "session_id",
    }
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {"logprob_start_len": -1, "top_logprobs_num": 0, "routed_experts_start_len": 0}


async def read_body(request: web.Request, most: int) -> bytes | bytearray:
    """The body of a request, of at most `most` bytes. `request.read` would hold the body in memory until the
    response."""
    if not request.can_read_body:  # a middleware has read it
        return await request.read()
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(body), text=f"the body has more than {most} bytes")
    return body


def read_json(raw: bytes | bytearray) -> dict[str, Any]:
    """The JSON object in the body of a request. Raises RequestError."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError as exc:
        raise RequestError("the body is nested too deeply") from exc
    except ValueError as exc:
        raise RequestError(f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return body


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """The body of a request to /generate, with either `text` or `input_ids`."""

    text: str | None
    input_ids: list[int] | None
    sampling_params: SamplingParams
    rid: str | None
    return_logprob: bool
    stream: bool
    images: tuple[Image, ...] = ()
    """The images. `input_ids` has a pad token for each."""
    return_experts: bool = False
    experts_start: int = 0
    """The first token whose experts are returned."""

    @classmethod
    def read(cls, body: Mapping[str, Any], *, images: bool = False, experts: bool = False) -> Self:
        """Read a body. `images`: the engine takes images. `experts`: the engine returns experts. Raises RequestError
        with the name of the wrong field."""
        served = _SERVED | ({"image_data"} if images else set()) | (_EXPERTS if experts else set())
        refuse_unserved(body, served, _HARMLESS, _DEFAULTS)
        text, input_ids = body.get("text"), body.get("input_ids")
        if text is not None and input_ids is not None:
            raise RequestError("either text or input_ids, not both")
        rid = body.get("rid")
        if rid is not None and not (isinstance(rid, str) and rid):
            raise RequestError("rid must be a string, and not empty")
        return cls(
            text=None if text is None else _text(text),
            input_ids=_token_ids(input_ids) if text is None else None,
            sampling_params=read_sampling_params(body.get("sampling_params"), images=images),
            rid=rid,
            return_logprob=_flag(body, "return_logprob"),
            stream=_flag(body, "stream"),
            images=_images(body.get("image_data")),
            return_experts=_flag(body, "return_routed_experts"),
            experts_start=_count(body, "routed_experts_start_len"),
        )


def read_sampling_params(values: Any, *, images: bool = False) -> SamplingParams:
    """Read the sampling parameters that an Engine obeys. A null counts as absent, since slime sends nulls. If the
    engine takes `images`, logit_bias may forbid tokens, which are the tokens for media. Raises RequestError."""
    if not isinstance(values, dict | None):
        raise RequestError("sampling_params must be an object")
    params: dict[str, Any] = {"max_new_tokens": _MAX_NEW_TOKENS}
    for name, value in (values or {}).items():
        if images and name == "logit_bias" and _forbids(value):
            params[name] = value
        elif not _is_idle(name, value):
            params[name] = _obeyed(name, value)
    params["stop"] = _stops(params.get("stop", []))
    params["stop_token_ids"] = _stop_token_ids(params.get("stop_token_ids", []))
    _check_ranges(params)
    if not 0 <= (seed := params.get("sampling_seed", 0)) < 2**63:
        raise RequestError(f"sampling_seed must be in [0, 2**63 - 1], got {_shown(seed)}.")
    if params.get("temperature", 1.0) < _GREEDY_BELOW:
        params["temperature"] = 0.0
    return cast(SamplingParams, params)


def _is_idle(name: str, value: Any) -> bool:
    """Whether an Engine obeys this value of a parameter without doing anything."""
    if value is None or name in _TEXT_ONLY or _is_default(_PARAMETER_DEFAULTS, name, value):
        return True
    return name not in _OBEYED and _is_empty(value)


def _forbids(logit_bias: Any) -> bool:
    """Whether a logit_bias only forbids tokens."""
    biases = logit_bias.values() if isinstance(logit_bias, dict) else ()
    return bool(biases) and all(type(bias) in (int, float) and bias <= _NEVER for bias in biases)


def _obeyed(name: str, value: Any) -> Any:
    if name not in _OBEYED:
        raise RequestError(f"sampling_params.{name[:80]}={_shown(value)} is not supported by this server")
    if not isinstance(value, _OBEYED[name]) or isinstance(value, bool):
        raise RequestError(f"sampling_params.{name} has the wrong type: {_shown(value)}")
    return value


def check_sampling_params(params: Mapping[str, Any]) -> None:
    """Raises RequestError for values that no engine can obey. Some, such as top_k = 2**63, kill a worker of SGLang with
    all of its requests. Unknown parameters are left to the engine."""
    numbers = {name: value for name, value in params.items() if type(value) in (int, float)}
    _check_ranges({"max_new_tokens": 0, **numbers})
    if not -(2**63) <= (seed := numbers.get("sampling_seed", 0)) < 2**63:
        raise RequestError(f"sampling_seed must be in [-2**63, 2**63 - 1], got {_shown(seed)}.")
    stop = params.get("stop") or ()
    for string in (stop,) if isinstance(stop, str) else stop:
        if isinstance(string, str):
            _check_encodable("sampling_params.stop", string)
    _stop_token_ids(params.get("stop_token_ids") or ())


def _check_ranges(params: Mapping[str, Any]) -> None:
    """Check ranges with SGLang's rules and messages, and with the bounds of 64 bits and float32."""
    if params["max_new_tokens"] < 0:
        raise RequestError(f"max_new_tokens must be at least 0, got {params['max_new_tokens']}.")
    temperature = params.get("temperature", 1.0)
    if not 0 <= temperature <= _MAX_TEMPERATURE:
        raise RequestError(
            f"temperature must be non-negative and at most {_MAX_TEMPERATURE:g}, got {_shown(temperature)}."
        )
    if not 0 < params.get("top_p", 1.0) <= 1:
        raise RequestError(f"top_p must be in (0, 1], got {_shown(params['top_p'])}.")
    if (top_k := params.get("top_k", -1)) != -1 and not 1 <= top_k < 2**31:
        raise RequestError(f"top_k must be -1 (disable) or at least 1 and below 2**31, got {_shown(top_k)}.")


def _stops(value: str | list[Any]) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError("sampling_params.stop must be a list of str, none empty")
    if len(stops) > _STOPS or sum(map(len, stops)) > _STOP_CHARACTERS:
        raise RequestError(f"sampling_params.stop holds more than {_STOPS} strings or {_STOP_CHARACTERS} characters")
    for stop in stops:
        _check_encodable("sampling_params.stop", stop)
    return stops


def _stop_token_ids(ids: Sequence[Any]) -> list[int]:
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= _TOKEN_IDS):
        raise RequestError("sampling_params.stop_token_ids must be a list of int, each the id of a token")
    return list(ids)


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise RequestError("text must be one string (this server takes no batches)")
    if not text:
        raise RequestError("text is empty: there is nothing to continue")
    _check_encodable("text", text)
    return text


def _token_ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= _TOKEN_IDS:
        raise RequestError("input_ids must be one non-empty list of token ids (this server takes no batches)")
    return ids


def _images(image_data: Any) -> tuple[Image, ...]:
    """The images of `image_data`: a data URI, or a list of data URIs. SGLang also accepts URLs of images, but this
    server fetches no URLs."""
    uris = [image_data] if isinstance(image_data, str) else image_data or []
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise RequestError("image_data must be a list of data URIs, one for each image (this server takes no batches)")
    try:
        return tuple(Image(uri) for uri in uris)
    except ValueError as exc:
        raise RequestError(f"image_data: {exc}") from exc


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name} must be true or false")
    return bool(value)


def _count(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if type(value) is not int or value < 0:
        raise RequestError(f"{name} must be a whole number from 0 on")
    return value


def _check_encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise RequestError(f"{name} holds a lone surrogate, which no tokenizer knows") from exc


def refuse_unserved(body: Mapping[str, Any], served: Set[str], harmless: Set[str], defaults: Mapping[str, Any]) -> None:
    """Raises RequestError for a field that is neither served nor harmless, unless the value is empty or the default."""
    for name, value in body.items():
        if (
            name not in served
            and name not in harmless
            and not _is_empty(value)
            and not _is_default(defaults, name, value)
        ):
            raise RequestError(f"{_shown(name)} is not served here and would change the answer; leave it out")


def _is_empty(value: Any) -> bool:
    """Whether SGLang treats the value as absent."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _is_default(defaults: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in defaults and type(value) in (int, float, str) and value == defaults[name]


def _shown(value: Any) -> str:
    """Any value as a short line. Python cannot print integers of thousands of digits, or deeply nested lists."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'dict'} of {len(value)}"
    if isinstance(value, int) and not math.isfinite(_float(value)):
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)[:80]


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"{name} is not JSON")
