"""Reads and checks the responses of a server. Only this module knows the fields that all responses have. Fields that
slime's patches add to `meta_info` stay in `Generation.meta`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast, get_args

from agentrl.errors import EngineError
from agentrl.types import FinishReason, Generation

_TOKEN_IDS = 2**31
"""The upper bound of token ids: tokenizers and tensors use 32 bits."""
_MAX_LOG_PROB = 1e-4
"""The largest log-prob that counts as rounding of 0. A Trajectory has the same limit."""
_MIN_LOG_PROB = -1e38
"""The smallest log-prob. A smaller number is infinite in float32."""
_READ_FIELDS = frozenset({"output_token_logprobs", "input_token_logprobs"})
"""The fields that are not copied to `Generation.meta`: `tokens` and `log_probs` have the same data, and each token
would take 200 bytes."""


class _FieldError(ValueError):
    """The value of a field that a trainer could not use."""


def read_generation(answer: bytes, where: str, vocab_size: int | None = None) -> Generation:
    """Read and check a response. Without `vocab_size`, any id of 32 bits is accepted.

    Raises EngineError with the server and the field if a trainer could not use the response.
    """
    try:
        meta = _object(_object(json.loads(answer), "the answer").get("meta_info"), "meta_info")
        finish_reason, matched = _finish(meta.get("finish_reason"))
        tokens, log_probs = _scored(meta, vocab_size or _TOKEN_IDS)
        rest = {name: value for name, value in meta.items() if name not in _READ_FIELDS}
        return Generation(
            tokens=tokens,
            log_probs=log_probs,
            finish_reason=finish_reason,
            matched=matched,
            weight_version=_version(meta.get("weight_version")),
            earlier_versions=_earlier_versions(meta.get("weight_versions"), len(tokens)),
            cached_tokens=_count(meta, "cached_tokens") or 0,
            meta={**rest, "completion_tokens": len(tokens)},
        )
    except _FieldError as exc:
        raise EngineError(f"{where}: {exc}; the answer begins {_excerpt(answer)}") from exc
    except (ValueError, RecursionError) as exc:
        raise EngineError(f"{where}: the answer is not JSON ({type(exc).__name__}): {_excerpt(answer)}") from exc


def error_message(answer: bytes) -> str:
    """The message of an error response: SGLang's {"error": {"message"}} or {"message"}, FastAPI's {"detail"}, or the
    text."""
    try:
        content = json.loads(answer)
        for key in ("error", "message", "detail"):
            if isinstance(content, dict) and key in content:
                content = content[key]
        text = str(content)
    except (ValueError, RecursionError):
        text = answer.decode(errors="replace")
    return " ".join(text.split())[:1000]


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _FieldError(f"{name} is {_shown(value)}, not a JSON object, so not an answer of SGLang")
    return value


def _finish(finish: Any) -> tuple[FinishReason, int | str | None]:
    reason = _object(finish, "finish_reason")
    kind, matched = reason.get("type"), reason.get("matched")
    if kind not in get_args(FinishReason):
        raise _FieldError(f"finish_reason.type is {_shown(kind)}, none of {', '.join(get_args(FinishReason))}")
    if isinstance(matched, bool) or not isinstance(matched, int | str | None):
        raise _FieldError(f"finish_reason.matched is {_shown(matched)}, neither a token id nor a stop string")
    return cast(FinishReason, kind), matched


def _scored(meta: Mapping[str, Any], vocab_size: int) -> tuple[list[int], list[float]]:
    """The sampled tokens and their log-probs."""
    # Absent when a request was aborted before the first token.
    scored = meta.get("output_token_logprobs") or []
    if not isinstance(scored, list):
        raise _FieldError(f"output_token_logprobs is {_shown(scored)}, no list")
    counted = _count(meta, "completion_tokens")
    if counted is not None and counted > len(scored):
        raise _FieldError(
            f"completion_tokens is {_shown(counted)}, but output_token_logprobs has {len(scored)}: "
            "no token can be trained without its log-prob"
        )
    scored = scored[:counted]  # SGLang sends at least one token, even if max_new_tokens is 0
    try:
        log_probs, tokens = [item[0] for item in scored], [item[1] for item in scored]
    except (TypeError, IndexError, KeyError) as exc:
        raise _FieldError("output_token_logprobs must hold lists [log_prob, token_id, ...]") from exc
    _check_tokens(tokens, vocab_size)
    return tokens, _checked_log_probs(log_probs)


def _check_tokens(tokens: list[Any], vocab_size: int) -> None:
    for i, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < _TOKEN_IDS:
            raise _FieldError(f"output_token_logprobs[{i}]: {_shown(token)} is not a token id")
        if token >= vocab_size:
            raise _FieldError(f"output_token_logprobs[{i}]: token id {token} is outside the vocabulary of {vocab_size}")


def _checked_log_probs(log_probs: list[Any]) -> list[float]:
    for i, log_prob in enumerate(log_probs):
        # NaN fails both comparisons.
        if type(log_prob) not in (float, int) or not _MIN_LOG_PROB <= log_prob <= _MAX_LOG_PROB:
            raise _FieldError(
                f"output_token_logprobs[{i}]: {_shown(log_prob)} is not a log-prob: it must be finite and at most 0"
            )
    return [float(log_prob) for log_prob in log_probs]


def _count(meta: Mapping[str, Any], name: str) -> int | None:
    value = meta.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise _FieldError(f"{name} is {_shown(value)}, no count")
    return value


def _version(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise _FieldError(f"weight_version is {_shown(value)}, no name")
    return None if value is None else str(value)


def _earlier_versions(spans: Any, tokens: int) -> tuple[tuple[str, int], ...]:
    """The versions of the weights that sampled the tokens, without the last version. Each version has the index after
    its last token. `spans` is SGLang's list `weight_versions`."""
    if spans is None:
        return ()
    try:
        versions = [(_version(span["version"]), span["start"], span["end"]) for span in spans]
    except (TypeError, KeyError) as exc:
        raise _FieldError("weight_versions must hold objects {version, start, end}") from exc
    end = 0
    for version, start, stop in versions:
        if version is None or start != end or type(stop) is not int or stop < end:
            raise _FieldError(f"weight_versions does not cover the tokens one after another, at {_shown(start)}")
        end = stop
    if versions and end < tokens:
        raise _FieldError(f"weight_versions covers {end} of {tokens} tokens")
    return tuple((str(version), stop) for version, start, stop in versions[:-1] if stop > start)


def _shown(value: Any) -> str:
    """Any value as a short line. Python cannot print integers of thousands of digits, or deeply nested lists."""
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'dict'} of {len(value)}"
    return ascii(value)[:80]


def _excerpt(answer: bytes) -> str:
    return ascii(" ".join(answer[:200].decode(errors="replace").split()))
