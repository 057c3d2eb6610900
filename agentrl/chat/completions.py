"""OpenAI's chat completions API from the client's side: writes requests, and reads the responses of different
servers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agentrl._util.http import HttpRefusedError
from agentrl.chat.thoughts import WRITTEN, split_thoughts
from agentrl.env.tool_calls import new_call_id
from agentrl.env.tools import normal_spec
from agentrl.errors import ConfigError, InfraError
from agentrl.plain import finite, no_constant
from agentrl.types import JSON, Message, ToolSpec

Finish: TypeAlias = Literal["stop", "length", "filtered"]

_CUT = {"length", "max_tokens", "model_length", "max_output_tokens"}
_FILTERED = {"content_filter", "safety", "refusal", "recitation", "prohibited_content", "blocklist", "sensitive"}
_OWN = {"role", "content", "tool_calls", "function_call", "reasoning_content", "reasoning", "refusal"}
_UNKNOWN = re.compile(r"unsupported|not supported|not permitted|extra|unexpected|unrecognized|unknown", re.IGNORECASE)
_NO_TEXT = re.compile(r"\b(string|null|none)\b", re.IGNORECASE)
_LATER = {408, 409, 425, 429}


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply of a chat model: message, finish reason and usage."""

    message: Message
    """`content` (always text), optional reasoning_content and tool_calls, and the server's extra fields."""
    sent_back: Message
    """The same message in the server's form, for the next request. Missing call ids are filled in."""
    finish: Finish
    usage: Mapping[str, float]
    """The reported counts, under the field names of `chat.client.Usage`."""
    first_token: Mapping[str, float] = field(default_factory=dict)
    """The likeliest tokens for the reply's first position -> log-prob. Empty unless the request asked for log-probs."""

    @property
    def answer(self) -> str:
        """The text without thoughts, for a program to read. "" for a cut, refused or empty reply; `flaw` gives the
        cause."""
        return "" if self.finish != "stop" else split_thoughts(self.message["content"], WRITTEN)[1].strip()

    @property
    def flaw(self) -> str:
        """The cause of an empty `answer`, with the remedy; "" if `answer` is not empty."""
        if self.finish == "length":
            return "was cut; allow more tokens"
        if self.finish == "filtered":
            return "was refused or filtered; change the question or the model"
        if self.answer:
            return ""
        thought = self.message.get("reasoning_content") or self.message["content"].strip()
        return "is only a thought; allow more tokens, or turn thoughts off" if thought else "is empty"


@dataclass(slots=True)
class ServerQuirks:
    """Parts of requests that a server refuses, or takes in another form. Later requests are adapted."""

    renamed: bool = False
    """The server takes max_completion_tokens, not max_tokens."""
    without: set[str] = field(default_factory=set)
    """Message fields that the server refuses."""
    no_null: bool = False
    """The server refuses `content: null`. A message that has only tool calls gets an empty text."""

    def apply(self, body: Mapping[str, JSON], most: int | None) -> dict[str, JSON]:
        """The request without the parts that the server refused earlier."""
        body = dict(body) if most is None else {"max_tokens": most, **body}
        if self.renamed and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        messages = [_without(message, self.without) for message in body["messages"]]
        if self.no_null:
            messages = [{**message, "content": message.get("content") or ""} for message in messages]
        return {**body, "messages": messages}

    def learn(self, sent: Mapping[str, JSON], refused: HttpRefusedError) -> bool:
        """Note a refusal. Returns whether another form of the request is worth a try."""
        if refused.status not in (400, 422):
            return False
        if "max_completion_tokens" in refused.words and "max_tokens" in sent and "max_completion_tokens" not in sent:
            self.renamed = True
            return True
        nulls = any(message.get("content", "") is None for message in sent["messages"])
        if nulls and _names(refused.words, "content") and _NO_TEXT.search(refused.words):
            self.no_null = True
            return True
        extra = {key for message in sent["messages"] for key in _extra(message)}
        named = {key for key in extra if _names(refused.words, key)}
        self.without |= named
        return bool(named)


def _extra(message: Message) -> set[str]:
    """Fields of a message that some servers do not know."""
    if message.get("role") != "assistant":
        return {"name"} & message.keys() if message.get("role") == "tool" else set()
    calls = message.get("tool_calls") or ()
    extra = {key for call in calls for key in call if key not in ("id", "type", "function")}
    return extra | {key for key in message if key not in ("role", "content", "tool_calls", "name")}


def _names(words: str, key: str) -> bool:
    """Whether a refusal's text names this field."""
    match = re.search(rf"(?<![\w]){re.escape(key)}(?!\w)", words)
    return match is not None and (key != "name" or _UNKNOWN.search(words) is not None)


def _without(message: Message, keys: set[str]) -> Message:
    if message.get("role") not in ("assistant", "tool"):
        return message
    fields = {key: value for key, value in message.items() if key not in keys or key == "role"}
    if message.get("tool_calls"):
        fields["tool_calls"] = [{k: v for k, v in call.items() if k not in keys} for call in message["tool_calls"]]
    return fields


def wire_message(message: Message) -> Message:
    """A message in the API's format: arguments as the text of a JSON object, and no `content: null` without calls."""
    if message.get("role") != "assistant":
        return message
    calls = message.get("tool_calls")
    if not calls:
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**rest, "content": "" if message.get("content") is None else message["content"]}
    return {"content": None, **message, "tool_calls": [_wire_call(call, i) for i, call in enumerate(calls)]}


def wire_tool(tool: ToolSpec) -> ToolSpec:
    return normal_spec(tool)


def read_reply(answer: JSON, url: str) -> Completion:
    """The reply in the JSON of a server's response. Raises InfraError if a retry may help, ConfigError if no retry
    will."""
    choice = _first_choice(answer, url)
    reason = str(choice.get("finish_reason") or "stop").lower()
    if choice.get("error") or reason == "error":
        raise _error(choice.get("error") or "the model broke off", url)
    received = choice.get("message") or {"content": choice.get("text")}
    if not isinstance(received, Mapping):
        raise _no_completion(answer, url)
    refused = reason in _FILTERED or _is_refusal(received)
    finish: Finish = "length" if reason in _CUT else "filtered" if refused else "stop"
    message, sent_back = _read_message(received)
    return Completion(message, sent_back, finish, _usage(answer.get("usage")), _first_token(choice.get("logprobs")))


def _first_choice(answer: JSON, url: str) -> Mapping[str, Any]:
    """The first of a response's `choices`. Raises as `read_reply` does."""
    if not isinstance(answer, Mapping):
        raise _no_completion(answer, url)
    choices = answer.get("choices")
    if not choices and (error := answer if answer.get("object") == "error" else answer.get("error")):
        raise _error(error, url)
    if choices is None and "choices" not in answer:
        raise _no_completion(answer, url)
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise InfraError(f"{url} answered without any choice")
    return choices[0]


def _is_refusal(message: Mapping[str, Any]) -> bool:
    """Whether the model refuses, in OpenAI's field or content part for refusals."""
    parts = message.get("content")
    parts = parts if isinstance(parts, list) else []
    return any(isinstance(part, Mapping) and _words(part.get("refusal")) for part in (message, *parts))


def _read_message(message: Mapping[str, Any]) -> tuple[Message, Message]:
    """The message in agentrl's form, and in the form to send back to the server."""
    content, thought = _content_and_thought(message)
    calls = _with_ids(_calls(message))
    extra = {key: value for key, value in message.items() if key not in _OWN and value not in (None, [], {}, "")}
    read: dict[str, JSON] = {"role": "assistant", "content": content}
    if thought:
        read["reasoning_content"] = thought
    if calls:
        read["tool_calls"] = [_read_call(call) for call in calls]
    thoughts = {key: message[key] for key in ("reasoning_content", "reasoning") if message.get(key)}
    sent_back = {"role": "assistant", "content": message.get("content") or content or None, **thoughts, **extra}
    return {**extra, **read}, wire_message({**sent_back, "tool_calls": calls} if calls else sent_back)


def _content_and_thought(message: Mapping[str, Any]) -> tuple[str, str]:
    content, thought = _text(message.get("content"))
    content = content or _words(message.get("refusal"))
    thought = next(filter(None, (_words(message.get(key)) for key in ("reasoning_content", "reasoning"))), thought)
    if not thought:
        thought, content = split_thoughts(content)
    return content, thought


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a message. Some servers send a single call, or the older `function_call`."""
    calls, legacy = message.get("tool_calls") or [], message.get("function_call")
    calls = calls if isinstance(calls, list) else [calls]
    if not calls and isinstance(legacy, Mapping):
        calls = [{"function": legacy}]
    return [call if isinstance(call, Mapping) else {} for call in calls]


def _read_call(call: Mapping[str, Any]) -> JSON:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    read = {**function, "name": name if isinstance(name, str) else "", "arguments": _arguments(function)}
    return {**call, "type": "function", "function": read}


def _arguments(function: Mapping[str, Any]) -> dict[str, JSON] | str:
    """A call's arguments: a dict, or the original text if the text is no JSON object. Missing arguments become an empty
    dict."""
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        read = json.loads(arguments, parse_constant=no_constant, parse_float=finite)
    except (ValueError, RecursionError):
        return arguments
    if read is None:
        return {}
    return read if isinstance(read, dict) else arguments


def _wire_call(call: Mapping[str, Any], place: int) -> JSON:
    """A call in the API's format. Arguments that are no JSON object are wrapped in an object, because many servers
    refuse other text."""
    read = _read_call(call)
    function = read["function"]
    arguments = function["arguments"]
    came = call.get("function")
    text = came.get("arguments") if isinstance(came, Mapping) else None
    if isinstance(arguments, str):
        text = json.dumps({"unreadable": arguments}, ensure_ascii=False)
    elif not isinstance(text, str) or not text.strip() or text.strip() == "null":
        text = json.dumps(arguments, ensure_ascii=False)
    call_id = read.get("id") or new_call_id(f"{place} {read!r}")
    return {**read, "id": call_id, "function": {**function, "arguments": text}}


def _with_ids(calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The calls; a missing or repeated id is replaced by a unique id."""
    identified, taken = list[Mapping[str, Any]](), set[str]()
    for place, call in enumerate(calls):
        call_id = call.get("id")
        name = (
            call_id
            if isinstance(call_id, str) and call_id and call_id not in taken
            else new_call_id(f"{place} {call!r}")
        )
        taken.add(name)
        identified.append({**call, "id": name})
    return identified


def _text(content: JSON) -> tuple[str, str]:
    """The text and the thoughts in a message's content. The content is text, null, or a list of parts."""
    if isinstance(content, int | float):
        return str(content), ""
    if not isinstance(content, list | Mapping):
        return _words(content), ""
    content = [content] if isinstance(content, Mapping) else content
    texts, thoughts = list[str](), list[str]()
    for part in content:
        if not isinstance(part, Mapping):
            texts.append(_words(part))
        elif part.get("type") in ("thinking", "reasoning", "redacted_thinking"):
            thought = part.get("thinking") or part.get("reasoning") or part.get("text")
            thoughts.append(_text(thought)[0])
        else:
            texts.append(_words(part.get("text")) or _words(part.get("refusal")))
    return "".join(texts), "".join(thoughts)


def _words(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def _usage(usage: JSON) -> Mapping[str, float]:
    if not isinstance(usage, Mapping):
        return {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    candidates = {
        "prompt_tokens": (usage.get("prompt_tokens"), usage.get("input_tokens")),
        "completion_tokens": (usage.get("completion_tokens"), usage.get("output_tokens")),
        "cached_tokens": (details.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")),
        "cost": (usage.get("cost"),),
    }
    counts = {name: next(filter(_is_count, values), None) for name, values in candidates.items()}
    return {name: count for name, count in counts.items() if count is not None}


def _is_count(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _first_token(log_probs: JSON) -> Mapping[str, float]:
    """`top_logprobs` of the first token: token -> log-prob. Invalid entries are left out."""
    try:
        tokens = {entry["token"]: entry["logprob"] for entry in log_probs["content"][0]["top_logprobs"]}
    except (LookupError, TypeError):
        return {}
    return {
        str(token): float(value) for token, value in tokens.items() if isinstance(value, int | float) and value <= 0
    }


def _error(error: JSON, url: str) -> Exception:
    """The exception for an `error` in a response with HTTP 200. The error's code comes from the upstream server."""
    code = error.get("code") if isinstance(error, Mapping) else None
    code = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdigit()) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    words = " ".join(str(message or error).split())[:300]
    if code is not None and 400 <= code < 500 and code not in _LATER:
        return ConfigError(f"{url} refuses the request with error {code}: {words}")
    return InfraError(f"{url} answered with an error: {words}")


def _no_completion(answer: JSON, url: str) -> ConfigError:
    return ConfigError(f"{url} answered {answer!r:.100}, which is not a chat completion; is it OpenAI-compatible?")
