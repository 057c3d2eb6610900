"""Google's Gemini API: generateContent and streamGenerateContent."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, ChatRequest, Entry, RefusalKind, RefusedError, Reply, ReplyCall
from agentrl.chat.wires import fields, forcing, reading, wishes
from agentrl.chat.wires.base import DEFAULTS, ReplyWriter, compact
from agentrl.chat.wires.reading import refuse
from agentrl.chat.wires.relaxed import relaxed
from agentrl.image import Image, Part
from agentrl.types import JSON, ToolSpec

_UNREADABLE = "INVALID_JSON"
"""Key for the text of a call, if the text is no JSON object."""
_STOPS = {"end": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "stop_sequence": "STOP"}
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_STATUS |= {408: "DEADLINE_EXCEEDED", 503: "UNAVAILABLE"}
_MEDIA = ("inlineData", "fileData")
_ANSWERS = ("output", "result", "error")
"""Keys under which clients wrap a tool's result."""
_MODES = {"any": "required", "validated": "auto", "mode_unspecified": "auto"}
"""Values of `functionCallingConfig.mode` -> the value of `tool_choice` in OpenAI's API."""
_ASKED = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}


class Gemini:
    """The API format of `/v1beta/models/NAME:generateContent`. The server adds `model`, `stream` and `array` from the
    path to the body. With `array` the response is a JSON list, as from streamGenerateContent without alt=sse."""

    def read(
        self, body: Mapping[str, JSON], headers: Mapping[str, str], digest: str, options: SessionOptions = DEFAULTS
    ) -> ReplyWriter:
        body = _spelled(body)
        config = _spelled(_object(body, "generationConfig"))
        notes = fields.recorded(body, fields.GEMINI)
        notes |= fields.recorded(_plain_modalities(config), fields.GEMINI_CONFIG, "generationConfig.")
        contents = _Contents(omit=options.images == "omit")
        entries = [*contents.system(_of(body, "systemInstruction")), *contents.entries(body.get("contents"))]
        if not any(entry.role != "system" for entry in entries):
            raise refuse("contents: at least one content is needed")
        tools, left_out = _tools(body.get("tools"))
        demands, changed = relaxed(_demands(body, config), options)
        recorded = {_ASKED.get(name, name): value for name, value in notes.items()}
        request = ChatRequest(
            wire="gemini",
            entries=tuple(entries),
            tools=forcing.callable_tools(demands.get("tool_choice"), tools),
            forced=forcing.forced(demands, tools, options),
            stream=body.get("stream") is True,
            n=reading.bound(config.get("candidateCount"), "generationConfig.candidateCount") or 1,
            max_tokens=reading.bound(config.get("maxOutputTokens"), "generationConfig.maxOutputTokens"),
            stop=reading.strings(config.get("stopSequences"), "generationConfig.stopSequences"),
            model=reading.string(body.get("model"), "model"),
            recorded={
                **recorded,
                **wishes.left_out(left_out),
                **({"images_omitted": contents.omitted} if contents.omitted else {}),
                **changed,
            },
            digest=digest,
            continued=wishes.is_open(entries),
            **wishes.common(body, headers, effort=_effort(_spelled(_object(config, "thinkingConfig")))),
        )
        return _ContentWriter(request, array=body.get("array") is True)

    def error(self, status: int, message: str, kind: RefusalKind | None = None) -> JSON:
        return _error(status, message, kind)


def _error(status: int, message: str, kind: RefusalKind | None) -> JSON:
    if kind == "context_full":
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    name = _STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def _of(data: Mapping[str, JSON], name: str) -> JSON:
    """The value of a field in either spelling, such as `topP` or `top_p`."""
    snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    return data.get(name, data.get(snake))


def _object(data: Mapping[str, JSON], name: str) -> Mapping[str, JSON]:
    value = _of(data, name)
    return {} if value is None else reading.mapping(value, name)


def _spelled(keyed: Mapping[str, JSON]) -> dict[str, JSON]:
    """The object with its keys in the spelling of Google's documentation: `topP` for a client's `top_p`."""
    return {
        name if name == "chat_template_kwargs" else re.sub("_([a-z])", lambda letter: letter[1].upper(), name): value
        for name, value in keyed.items()
    }


def _plain_modalities(config: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The configuration, with the names of modalities in capital letters."""
    modalities = config.get("responseModalities")
    listed = modalities if isinstance(modalities, list) else [modalities]
    return config if modalities is None else {**config, "responseModalities": [str(name).upper() for name in listed]}


def _effort(thinking: Mapping[str, JSON]) -> JSON:
    """How much the model should think, in OpenAI's words."""
    if thinking.get("thinkingBudget") == 0:
        return "none"
    level = thinking.get("thinkingLevel")
    return level.lower() if isinstance(level, str) else None


def _demands(body: Mapping[str, JSON], config: Mapping[str, JSON]) -> dict[str, JSON]:
    """The request's demands on the form of the answer, as fields of OpenAI's API."""
    calling = _object(_object(body, "toolConfig"), "functionCallingConfig")
    mode = str(calling.get("mode") or "AUTO").lower()
    names = reading.strings(_of(calling, "allowedFunctionNames"), "allowedFunctionNames")
    choice: JSON = _MODES.get(mode, mode)
    if names and choice in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": choice, "tools": [{"name": name} for name in names]}
    demands: dict[str, JSON] = {"tool_choice": choice}
    kind = config.get("responseMimeType")
    if kind == "application/json":
        declared = config.get("responseJsonSchema", config.get("responseSchema"))
        schema = None if declared is None else _schema(declared)
        demands["response_format"] = {"type": "json_schema", "schema": schema}
    elif reading.unlike(kind, "text/plain"):
        raise refuse(f"generationConfig.responseMimeType: {kind!r:.80} is not served; use application/json")
    return demands


class _Contents:
    """Reads the field `contents`, the conversation. Calls without ids, from older clients, are matched with results in
    order."""

    def __init__(self, *, omit: bool) -> None:
        self.omitted = 0
        self._omit = omit
        self._open: list[Call] = []

    def system(self, content: JSON) -> list[Entry]:
        if content is None:
            return []
        parts = [content] if isinstance(content, str) else _of(reading.mapping(content, "systemInstruction"), "parts")
        parts = [parts] if isinstance(parts, dict) else parts
        texts = [
            reading.part_text(
                part if isinstance(part, str) else {"type": "text", **_part(part, "systemInstruction")}, ""
            )
            for part in reading.sequence(parts, "systemInstruction.parts")
        ]
        return reading.blocks("system", texts) if texts else []

    def entries(self, contents: JSON) -> Iterator[Entry]:
        for index, content in enumerate(reading.sequence(contents, "contents")):
            where = f"contents[{index}]"
            content = reading.mapping(content, where)
            role = content.get("role") or "user"
            if role not in ("user", "model", "function"):
                raise refuse(f"{where}.role must be user or model, not {role!r:.80}")
            sent = reading.sequence(content.get("parts"), f"{where}.parts")
            parts = [(part, f"{where}.parts[{i}]") for i, part in enumerate(sent)]
            if role == "model":
                yield self._assistant([(_part(part, place), place) for part, place in parts])
            else:
                yield from reading.joined([self._block(*part) for part in parts] or [Entry("user")])

    def _assistant(self, parts: Sequence[tuple[Mapping[str, JSON], str]]) -> Entry:
        texts: list[str] = []
        thoughts: list[str] = []
        receipts: list[str] = []
        calls: list[Call] = []
        for part, where in parts:
            receipts.append(_receipt(_of(part, "thoughtSignature")))
            if (called := _of(part, "functionCall")) is not None:
                calls.append(_call(reading.mapping(called, f"{where}.functionCall"), where))
                receipts.append(calls[-1].id)
            elif part.get("text") is not None:
                (thoughts if part.get("thought") is True else texts).append(
                    reading.string(part["text"], f"{where}.text")
                )
            elif receipts[-1] == "":
                raise _foreign(part, where)
        self._open = list(calls)
        return Entry(
            "assistant", "".join(texts), "".join(thoughts) if thoughts else None, tuple(calls), reading.unique(receipts)
        )

    def _block(self, part: JSON, where: str) -> Entry:
        if isinstance(part, Image):
            return Entry.of("user", [part])
        part = _part(part, where)
        if (answer := _of(part, "functionResponse")) is not None:
            answer = reading.mapping(answer, f"{where}.functionResponse")
            name = reading.string(answer.get("name"), f"{where}.functionResponse.name")
            call_id = reading.string(answer.get("id"), f"{where}.functionResponse.id")
            sent = enumerate(reading.sequence(answer.get("parts"), f"{where}.functionResponse.parts"))
            media = [self._shown(item, f"{where}.functionResponse.parts[{i}]") for i, item in sent]
            text = _answer(answer.get("response"))
            parts = [text, *media] if text or not media else media
            if _is_failure(answer.get("response")):
                parts = reading.failed(parts)
            return Entry.of("tool", parts, call_id=self._answered(call_id, name))
        return Entry.of("user", [self._shown(part, where)])

    def _shown(self, part: JSON, where: str) -> Part:
        """The text or image of a part; a note for an omitted file."""
        if isinstance(part, Image):
            return part
        part = _part(part, where)
        if part.get("text") is not None:
            return reading.string(part["text"], f"{where}.text")
        file = next((_object(part, name) for name in _MEDIA if _of(part, name) is not None), None)
        if file is None:
            raise _foreign(part, where)
        if self._omit:
            self.omitted += 1
            return "[image omitted: this model reads text only]"
        kind = str(_of(file, "mimeType")).partition("/")[0]
        raise reading.foreign(kind if reading.MEDIA.search(kind) else "file", where)

    def _answered(self, call_id: str, name: str) -> str:
        """The id of the call that a result answers: the result's own id, or else the id of the first unanswered call of
        the tool."""
        same = [call for call in self._open if (call.id == call_id if call_id else call.name == name)]
        if same:
            self._open.remove(same[0])
        return call_id or (same[0].id if same else "")


def _part(part: JSON, where: str) -> Mapping[str, JSON]:
    if isinstance(part, Image):
        raise refuse(f"{where}: only a user's content shows images; move it there")
    return {"text": part} if isinstance(part, str) else reading.mapping(part, where)


def _foreign(part: Mapping[str, JSON], where: str) -> RefusedError:
    return refuse(f"{where}: {', '.join(part) or 'an empty part'} is not served; send text, calls and their results")


def _call(called: Mapping[str, JSON], where: str) -> Call:
    arguments = called.get("args")
    if isinstance(arguments, dict) and list(arguments) == [_UNREADABLE]:
        arguments = arguments[_UNREADABLE]
    name = reading.string(called.get("name"), f"{where}.functionCall.name")
    return Call(reading.string(called.get("id"), f"{where}.functionCall.id"), name, reading.arguments(arguments))


def _answer(response: JSON) -> str:
    """A tool's result as text: the string itself if the result only wraps a string, else JSON."""
    if isinstance(response, dict) and len(response) == 1:
        key, value = next(iter(response.items()))
        if key in _ANSWERS and isinstance(value, str):
            return value
    return "" if response is None else json.dumps(response, ensure_ascii=False)


def _is_failure(response: JSON) -> bool:
    """Whether a result shows a failed call, by an `error` or by the flag of MCP's results."""
    return isinstance(response, dict) and (response.get("error") or response.get("isError") is True) not in (
        None,
        False,
    )


def _receipt(signature: JSON) -> str:
    """The `Reply.receipt` in a signature, which this API encodes in base64. Empty for a signature from another
    server."""
    try:
        return base64.b64decode(str(signature or ""), altchars=b"-_", validate=False).decode("ascii")
    except (binascii.Error, ValueError):
        return ""


def _tools(sent: JSON) -> tuple[list[ToolSpec], list[str]]:
    """The tools of a request, and the names of the omitted tools, which Google's servers would run."""
    tools: list[ToolSpec] = []
    left_out: list[str] = []
    for index, tool in enumerate(reading.sequence(sent, "tools")):
        tool = reading.mapping(tool, f"tools[{index}]")
        declared = reading.sequence(_of(tool, "functionDeclarations"), f"tools[{index}].functionDeclarations")
        for i, function in enumerate(declared):
            where = f"tools[{index}].functionDeclarations[{i}]"
            function = reading.mapping(function, where)
            schema = _of(function, "parametersJsonSchema")
            parameters = _schema(function.get("parameters")) if schema is None else schema
            tools.append(reading.function(function.get("name"), function.get("description"), parameters, where))
        left_out += [name for name in tool if name not in ("functionDeclarations", "function_declarations")]
    return tools, left_out


def _schema(value: JSON) -> JSON:
    """Convert a schema of this API to JSON Schema: the names of types become small letters."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item.lower() if key == "type" and isinstance(item, str) else item if key == "enum" else _schema(item)
        for key, item in value.items()
    }


@dataclass(frozen=True, slots=True)
class _ContentWriter:
    request: ChatRequest
    array: bool
    id: str = field(default_factory=lambda: uuid4().hex)

    def whole(self, replies: Sequence[Reply]) -> JSON:
        body = self._response(replies)
        return [body] if self.array else body

    def _response(self, replies: Sequence[Reply]) -> dict[str, JSON]:
        candidates = [
            {
                "content": {"role": "model", "parts": _parts(reply)},
                "finishReason": _STOPS[reply.stop],
                "index": index,
            }
            for index, reply in enumerate(replies)
        ]
        return {"candidates": candidates, "usageMetadata": _usage(replies), **self._head()}

    def _head(self) -> dict[str, JSON]:
        return {"modelVersion": self.request.model, "responseId": self.id}

    def opening(self) -> bytes:
        return self.progress()

    def progress(self) -> bytes:
        return _data(self._head())

    def closing(self, replies: Sequence[Reply]) -> tuple[bytes, bytes]:
        return b"", _data(self._response(replies))

    def failure(self, refused: RefusedError) -> bytes:
        return _data(_error(refused.status, str(refused), refused.kind))


def _data(data: JSON) -> bytes:
    return f"data: {compact(data)}\r\n\r\n".encode()


def _parts(reply: Reply) -> list[dict[str, JSON]]:
    parts: list[dict[str, JSON]] = []
    if reply.reasoning is not None and not reply.without_reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.content or not reply.calls:
        parts.append({"text": reply.content})
    parts += [{"functionCall": {"id": call.id, "name": call.name, "args": _args(call)}} for call in reply.calls]
    parts[-1]["thoughtSignature"] = base64.b64encode(reply.receipt.encode()).decode()
    return parts


def _args(call: ReplyCall) -> dict[str, JSON]:
    """A call's arguments, which must be an object in this API."""
    return {_UNREADABLE: call.arguments} if isinstance(call.arguments, str) else dict(call.arguments)


def _usage(replies: Sequence[Reply]) -> JSON:
    """The response's `usageMetadata` for all replies to a request. The tokens of their common prompt are counted
    once."""
    prompt, sampled = replies[0].usage.prompt, sum(reply.usage.sampled for reply in replies)
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": max(reply.usage.cached for reply in replies),
        "candidatesTokenCount": sampled,
        "totalTokenCount": prompt + sampled,
    }
