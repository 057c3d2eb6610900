"""Execute the tool calls of an action, and answer in order."""

from __future__ import annotations

import itertools
import json
import logging
import traceback
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any, ClassVar, Protocol
from zlib import crc32

from agentrl._util.activity import doing
from agentrl._util.concurrency import Deadline, gather
from agentrl._util.loading import cause, own_frames
from agentrl.env.runtime import Runtime
from agentrl.env.tools import Tool, normal_spec, tool_name
from agentrl.errors import BadCall, CallError, InfraError, ToolError, leaves, one_line
from agentrl.image import Image, has_image, is_image, normal_content
from agentrl.plain import number
from agentrl.types import JSON, MaybeAwait, Message, StepResult, Task, ToolCall, ToolResult

log = logging.getLogger("agentrl")

_MEDIA: Mapping[str, Set[str]] = {
    "audio": {"data", "audio"},
    "audio_url": {"audio_url"},
    "input_audio": {"input_audio"},
    "video": {"video"},
    "video_url": {"video_url"},
}
"""Message parts that no model here can read (sound, video): `type` -> keys of such a part in the formats of OpenAI,
Anthropic and MCP."""
_logged: set[tuple[type, str]] = set()


class ToolOwner(Protocol):
    """The members of an Env that this module uses."""

    task: Task
    _agentrl: Runtime
    _agentrl_tools: ClassVar[Mapping[str, Tool]]

    def exec_tool(self, call: ToolCall, /) -> MaybeAwait[ToolResult | JSON]: ...


async def run_calls(env: ToolOwner, calls: Sequence[ToolCall]) -> StepResult:
    """Execute calls concurrently. A tool with `parallel=False` waits for all earlier calls, and later calls wait for
    the tool."""
    tools = env._agentrl_tools
    messages, rewards, done = list[Message](), list[float](), False
    for _, batch in itertools.groupby(
        enumerate(calls), lambda pair: pair[0] if pair[1].name in tools and not tools[pair[1].name].parallel else -1
    ):
        for message, result in await gather(_answer(env, call) for _, call in batch):
            _refuse_media(message["name"], result.content)
            messages.append(_with_images(message))
            done = done or result.done
            if result.reward is not None:
                rewards.append(number(result.reward, f"the reward of tool {message['name']}"))
    return StepResult(messages, reward=sum(rewards) if rewards else None, done=done)


async def exec_own_tool(env: ToolOwner, call: ToolCall) -> ToolResult | JSON:
    """Execute the @tool method of a call. Raises CallError without such a method, or if the arguments do not fit."""
    tool = env._agentrl_tools.get(call.name)
    if tool is None:
        offered = env._agentrl.offered or (
            *env._agentrl_tools,
            *(tool_name(normal_spec(spec)) for spec in env.task.tools),
        )
        names = ", ".join(offered)
        raise CallError(f"there is no tool {call.name!r}; the tools are: {names or 'none'}")
    method = partial(getattr(env, tool.attribute), **tool.validate(call.arguments))
    return await env._agentrl.call(method)


async def _answer(env: ToolOwner, call: ToolCall) -> tuple[Message, ToolResult]:
    """A call's result, or its error as text for the model. InfraError is not caught, because the model is not to
    blame."""
    runtime, tool = env._agentrl, env._agentrl_tools.get(call.name)
    if call.error is not None:
        return _error(call, call.error)
    deadline = Deadline((tool and tool.timeout) or runtime.limits.tool_s)
    try:
        async with deadline:
            with doing(f"tool {call.name}"):
                result = await runtime.call(env.exec_tool, call)
        result = result if isinstance(result, ToolResult) else ToolResult(result)
        return _message(call, result.content), result
    except ToolError as exc:
        if isinstance(exc, CallError):
            runtime.call_errors.append(BadCall("content", str(exc)))
        return _error(call, str(exc))
    except Exception as exc:  # the tool boundary: the model reads the error, and it is counted
        if any(isinstance(leaf, InfraError) for leaf in leaves(exc)):
            raise
        if deadline.expired() and isinstance(exc, TimeoutError):
            return _error(call, f"{call.name} {deadline.said()}")
        _count(env, call, exc)
        return _error(call, one_line(exc))


def new_call(name: str, arguments: JSON, about: str = "") -> JSON:
    """A tool call in OpenAI's format. The id is computed from `about`, the name and the arguments."""
    function = {"name": name, "arguments": arguments}
    return {"id": new_call_id(f"{about}{function!r}"), "type": "function", "function": function}


def new_call_id(text: str) -> str:
    """A call id computed from a text: nine letters and digits, which every server and every template accepts."""
    return f"c{crc32(text.encode()):08x}"


def _message(call: ToolCall, content: JSON) -> Message:
    if not isinstance(content, str) and _images(content) is None:
        try:
            content = json.dumps(content, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise TypeError(f"{call.name} returned {type(content).__name__}, which JSON cannot hold: {exc}") from exc
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _error(call: ToolCall, text: str) -> tuple[Message, ToolResult]:
    return _message(call, f"Error: {text}"), ToolResult("")


def _images(content: Any) -> Any:
    """The parts of a tool's result, if a part is an image; otherwise None. MCP's results have their parts under the key
    `content`."""
    if isinstance(content, str):
        return None
    parts = content.get("content") if isinstance(content, Mapping) and not is_image(content) else content
    parts = [parts] if isinstance(parts, Image) or (isinstance(parts, Mapping) and is_image(parts)) else parts
    return parts if has_image(parts) else None


def _with_images(message: Message) -> Message:
    """A tool's message with its images in the stored form. Raises ValueError for an unreadable image, which is a
    bug."""
    parts = _images(message["content"])
    if parts is None:
        return message
    try:
        return {**message, "content": normal_content(parts)}
    except ValueError as exc:
        raise ValueError(f"tool {message['name']} returned an image that cannot be shown: {exc}") from exc


def _refuse_media(name: str, content: JSON) -> None:
    """Raises ValueError for a result with sound or video: a model would read the base64 of the JSON as text. Such a
    result is a bug in the Env, and the model must not see the bug."""
    if isinstance(content, str):
        return
    parts = content.get("content", content) if isinstance(content, Mapping) else content
    for part in parts if isinstance(parts, list | tuple) else [parts]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and _MEDIA.get(kind, set()) & part.keys():
            raise ValueError(f"tool {name} returned {kind!r}, but a model gets text and images only: turn it into text")


def _count(env: ToolOwner, call: ToolCall, exc: Exception) -> None:
    runtime, kind = env._agentrl, f"{call.name}:{type(exc).__name__}"
    runtime.tool_errors[kind] = runtime.tool_errors.get(kind, 0) + 1
    runtime.first_tool_error = runtime.first_tool_error or exc
    if (type(env), kind) not in _logged:
        _logged.add((type(env), kind))
        frames = own_frames("".join(traceback.format_exception(exc)))
        log.warning(
            "tool %s of %s raised; the model reads the error. First one:\n%s%s",
            call.name,
            runtime.name,
            frames,
            cause(exc),
        )
