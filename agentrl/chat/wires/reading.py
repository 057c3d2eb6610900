"""Functions of all wires for reading requests: checked access to JSON values, texts and tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, TypeVar, cast

from agentrl.chat.request import ChatRequest, Entry, RefusedError, Role
from agentrl.image import Image, Part
from agentrl.plain import finite, no_constant
from agentrl.plain import text as without_halves
from agentrl.trajectory.trajectory import SUB_AGENT
from agentrl.types import JSON, ToolSpec

T = TypeVar("T")

BRANCH_HEADER = "X-Agentrl-Branch"
"""Header with the branch of the agent's session to which a request belongs: the branch `solver/1` has the role
`solver`."""
_BRANCH = re.compile(r"[A-Za-z0-9._-][A-Za-z0-9._/-]{0,63}")

_TEXTS = frozenset({"text", "input_text", "output_text"})
MEDIA = re.compile("image|audio|video|file|document")
_RUN_BY_CLIENTS = re.compile("(local_)?shell$|apply_patch$|computer")
"""Types of OpenAI's built-in tools that the client runs. An agent cannot work without such a tool."""
_FAILED = re.compile(r"[\W_]*[\w.]*(error|exception|traceback|fail|fatal)", re.IGNORECASE)
"""The beginning of a tool's result that reports a failure: `ValueError: ...`, `Failed to ...`, `<tool_use_error>`."""
_KEY_LENGTH = 255


def refuse(problem: str) -> RefusedError:
    """A RefusedError for an invalid request."""
    return RefusedError("invalid", problem)


def read_body(raw: bytes) -> Mapping[str, JSON]:
    """Parse a request's body. Raises RefusedError unless the body is a JSON object."""
    try:
        body = json.loads(raw, parse_constant=no_constant, parse_float=finite)
    except (ValueError, RecursionError) as exc:
        raise refuse(f"the body is not JSON ({exc}); send a JSON object") from exc
    if b"\\u" in raw:
        body = _mended(body)
    return mapping(body, "the body")


def _mended(value: JSON) -> JSON:
    """A JSON value without lone surrogates (halves of characters), which no tokenizer accepts."""
    if isinstance(value, str):
        return without_halves(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {without_halves(key): _mended(item) for key, item in value.items()}
    return value


def mapping(value: JSON, where: str) -> Mapping[str, JSON]:
    """The value as a JSON object. Raises RefusedError for anything else."""
    if not isinstance(value, dict):
        raise refuse(f"{where} must be an object, not {value!r:.80}")
    return value


def sequence(value: JSON, where: str) -> Sequence[JSON]:
    """The value as a list. None is an empty list. Raises RefusedError for anything else."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise refuse(f"{where} must be a list, not {value!r:.80}")
    return value


def string(value: JSON, where: str) -> str:
    """The value as a string. None is the empty string. Raises RefusedError for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refuse(f"{where} must be a string, not {value!r:.80}")
    return value


def bound(value: JSON, where: str) -> int | None:
    """The value as a positive whole number. None stays None. Raises RefusedError for anything else."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refuse(f"{where} must be a positive whole number, not {value!r:.80}")
    return value


def strings(value: JSON, where: str) -> tuple[str, ...]:
    """The strings in a value that is a string or a list of strings. Empty strings are left out."""
    if isinstance(value, str):
        value = [value]
    return tuple(item for item in (string(item, where) for item in sequence(value, where)) if item)


def texts(content: JSON, where: str) -> list[str]:
    """The texts in a message's content: a string or a list of parts. Raises RefusedError for other media."""
    if isinstance(content, str):
        return [content]
    return [part_text(part, f"{where}[{index}]") for index, part in enumerate(sequence(content, where))]


def parts(content: JSON, where: str) -> list[Part]:
    """The texts and images in the content of a user's message or a tool's result. Raises RefusedError for other
    media."""
    if isinstance(content, str):
        return [content]
    items = enumerate(sequence(content, where))
    return [part if isinstance(part, Image) else part_text(part, f"{where}[{index}]") for index, part in items]


def part_text(part: JSON, where: str) -> str:
    """The text of a part. Raises RefusedError for a part that is no text."""
    if isinstance(part, str):
        return part
    if isinstance(part, Image):
        raise refuse(f"{where}: only a user's message or a tool's result shows images; move it there")
    part = mapping(part, where)
    kind = part.get("type")
    if kind in _TEXTS:
        return string(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return string(part.get("refusal"), f"{where}.refusal")
    raise foreign(kind, where)


def foreign(kind: JSON, where: str) -> RefusedError:
    """A RefusedError for a part that is no text."""
    if isinstance(kind, str) and MEDIA.search(kind):
        remedy = "(an AgentEnv may set SessionOptions(images='omit'))"
        if "image" not in kind:
            return refuse(f"{where}: the model does not read a {kind!r}; leave it out {remedy}")
        return refuse(
            f"{where}: the model reads text only; leave out the {kind!r}, or use a model of the Qwen-VL family {remedy}"
        )
    return refuse(f"{where}: the type {kind!r} is not served; send text, tool calls and their results")


def blocks(role: Role, parts: Iterable[Part]) -> list[Entry]:
    """The texts and images of one message as entries. An empty message is one empty entry."""
    return joined([Entry.of(role, [part]) for part in parts] or [Entry(role)])


def joined(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of one message, with `joined` set in all entries after the first."""
    return [*entries[:1], *(replace(entry, joined=True) for entry in entries[1:])]


def arguments(value: JSON) -> Mapping[str, JSON] | str:
    """A call's arguments: the object in the string, or the string if the string holds no object."""
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {} if value is None else json.dumps(value)
    if not value.strip():
        return {}
    try:
        read = _ARGUMENTS.decode(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, dict) else value


_ARGUMENTS = json.JSONDecoder(parse_constant=no_constant, parse_float=finite)


def left_out(kind: JSON, where: str) -> str:
    """The type of a tool that the vendor's servers would run, and that is therefore omitted. Raises RefusedError for a
    tool that the client runs."""
    if isinstance(kind, str) and _RUN_BY_CLIENTS.match(kind):
        raise refuse(f"{where}: the type {kind!r} is OpenAI's own; declare the tool as a function")
    return str(kind)


def function(name: JSON, description: JSON, parameters: JSON, where: str) -> ToolSpec:
    """A tool in the form that chat templates take. Fields for caching and strictness are left out."""
    spec: dict[str, JSON] = {"name": string(name, f"{where}.name")}
    if not spec["name"]:
        raise refuse(f"{where}.name is missing")
    if description is not None:
        spec["description"] = string(description, f"{where}.description")
    spec["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"type": "function", "function": spec}


def failed(parts: Sequence[Part]) -> list[Part]:
    """The parts of a failed tool's result, beginning with "Error" or a similar word.

    Chat templates have no flag for a failure, so the model reads the failure in the text. The text is the same for all
    APIs.
    """
    first = next(iter(parts), "")
    if not isinstance(first, str):
        return ["Error:", *parts]
    if _FAILED.match(first):
        return list(parts)
    return [f"Error: {first}" if first.strip() else "Error", *parts[1:]]


def integers(value: JSON, where: str) -> tuple[int, ...]:
    """The whole numbers of a list. Raises RefusedError for anything else."""
    numbers = sequence(value, where)
    if any(not isinstance(item, int) or isinstance(item, bool) or item < 0 for item in numbers):
        raise refuse(f"{where} must be a list of token ids, not {value!r:.80}")
    return tuple(numbers)


class Retry(TypedDict):
    """The fields of a ChatRequest by which retries are recognized."""

    retried: bool
    idempotency_key: str


def retry(headers: Mapping[str, str]) -> Retry:
    """Read the headers for retries: the SDK's mark of a retry, and the client's own key for the request.

    Raises RefusedError if the key is too long.
    """
    count, key = headers.get("x-stainless-retry-count", ""), headers.get("Idempotency-Key", "")
    if len(key) > _KEY_LENGTH:
        raise refuse(f"Idempotency-Key: it has {len(key)} characters; use at most {_KEY_LENGTH}")
    return {"retried": count.isdecimal() and int(count) > 0, "idempotency_key": key}


def in_branch(request: ChatRequest, headers: Mapping[str, str]) -> ChatRequest:
    """The request with its branch name: the value of BRANCH_HEADER, or else `sub-agent/NAME` from the client's own
    headers.

    Equal requests of two branches do not count as a retry. Raises RefusedError for an invalid name.
    """
    client_name, header = request.branch, headers.get(BRANCH_HEADER, "")
    if header and not _BRANCH.fullmatch(header):
        raise refuse(
            f"{BRANCH_HEADER} is {header!r:.80}; write up to 64 letters, digits and any of . _ - / as solver/1"
        )
    name = header or (f"{SUB_AGENT}/{client_name}" if client_name not in ("", SUB_AGENT) else client_name)
    return replace(request, branch=name, digest=f"{request.digest} {name}") if name else request


def unlike(value: JSON, *harmless: JSON) -> bool:
    """Whether a parameter has a value that would change the answer."""
    return value is not None and value not in harmless


def unique(values: Iterable[T | None]) -> tuple[T, ...]:
    """The values in order, without repetitions and empty values."""
    return tuple(dict.fromkeys(cast(Iterator[T], filter(None, values))))
