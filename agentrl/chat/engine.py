"""An engine without a model of its own: a speaker (an API model, a person) writes messages, which are encoded as
tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from agentrl.chat.client import ChatModel, ScriptedSpeaker, Speaker
from agentrl.chat.completions import Completion, wire_message
from agentrl.engine.base import AsyncClosing, stop_strings
from agentrl.engine.scripted import scripted_log_prob
from agentrl.env.tool_calls import new_call
from agentrl.errors import EngineError, RequestError, TemplateError
from agentrl.types import JSON, ChatReply, Generation, Message, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

_OPTIONS = ("temperature", "top_p", "top_k")
_LONGEST = 1 << 20


class ChatEngine(AsyncClosing):
    """An engine that lets a speaker play the same episodes as a model. The renderer encodes the speaker's messages as
    tokens.

    The engine cuts replies at stop strings. The log-probs are invented, so the tokens fit supervised training, but not
    reinforcement learning. `ChatReply` holds the parts of a message that have no tokens.
    """

    takes_messages: Literal[True] = True

    def __init__(self, speaker: Speaker, renderer: Renderer, *, by: Mapping[str, str] | None = None) -> None:
        """`by` names the speaker in `Trajectory.info["player"]`; the default is a ChatModel's name and host."""
        self._speaker, self._renderer = speaker, renderer
        if by is None and isinstance(speaker, ChatModel):
            by = {"model": speaker.model, "host": speaker.host}
        self._by = dict(by or {"model": type(speaker).__name__})
        self._running: dict[str, asyncio.Event] = {}

    @property
    def takes_grammars(self) -> bool:
        """Whether the speaker is a script, which must obey a grammar by itself; the session reports violations."""
        return isinstance(self._speaker, ScriptedSpeaker)

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        """Always raises RequestError, because a speaker reads messages, not tokens."""
        raise RequestError(f"{self._by['model']} speaks in messages and reads no tokens; ask it with `answer`")

    async def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
    ) -> Generation:
        rid = rid or uuid4().hex
        aborted = self._running[rid] = asyncio.Event()
        asking = asyncio.ensure_future(self._ask(messages, tools, sampling_params))
        waiting = asyncio.ensure_future(aborted.wait())
        try:
            await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return Generation([], [], "abort")
            reply = asking.result()
        finally:
            self._running.pop(rid, None)
            for task in (asking, waiting):
                task.cancel()
        return self._generation(reply, tools, sampling_params, len(messages))

    async def _ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams) -> Completion:
        if not isinstance(self._speaker, ChatModel):
            message = await self._speaker.reply(messages, tools)
            return Completion(message, wire_message(message), "stop", {})
        options: Mapping[str, JSON] = {name: params[name] for name in _OPTIONS if name in params}  # type: ignore[literal-required]
        return await self._speaker.ask(messages, tools, most=params.get("max_new_tokens"), **options)

    def _generation(
        self, reply: Completion, tools: Sequence[ToolSpec], params: SamplingParams, place: int
    ) -> Generation:
        """The reply encoded as tokens and cut at a stop string. `place` is the reply's index among the conversation's
        messages."""
        message, sent_back, stop = _cut_at(stop_strings(params), reply)
        renderer = self._renderer.bind(tools)
        tokens = _tokens(renderer, message, place)
        ends = renderer.stop_token_ids.union(params.get("stop_token_ids") or ())
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        matched: int | str | None = None if end is None else tokens[end]
        closed = end is not None and stop is None and reply.finish != "length"
        tokens = tokens[: len(tokens) if end is None else end + closed]
        if not tokens and not closed:
            raise EngineError(f"{self._by['model']} sent an empty answer, although it was cut off")
        return Generation(
            tokens,
            [scripted_log_prob(token) for token in tokens],
            "length" if reply.finish == "length" else "stop",
            stop or (matched if closed else None),
            said=ChatReply(message, sent_back, self._by, _counts(reply)),
        )

    async def abort(self, rid: str | None = None) -> None:
        """Stop waiting for the reply to the request `rid`; None stands for all requests."""
        for name, aborted in self._running.items():
            if rid in (None, name):
                aborted.set()

    async def context_length(self) -> int:
        """A million tokens: practically no limit, because the speaker itself reports a full context."""
        return _LONGEST

    async def close(self) -> None:
        await self.abort()


def _tokens(renderer: Renderer, message: Message, place: int) -> list[int]:
    """The message as tokens. Calls that the template refuses are encoded as text. The server's extra fields are left
    out. Raises RequestError if the template refuses the text, too."""
    text: Message = {key: message[key] for key in ("role", "content", "reasoning_content") if key in message}
    forms = [text]
    if calls := [_readable(call, f"{place}-{i}") for i, call in enumerate(message.get("tool_calls") or ())]:
        words = [f"{call['function']['name']}({call['function']['arguments']})" for call in calls]
        as_text = {**text, "content": "\n".join(filter(None, [message["content"], *words]))}
        forms = [{**text, "tool_calls": calls}, as_text]
    refusal = ""
    for form in forms:
        try:
            return renderer.encode(form)
        except TemplateError as exc:
            refusal = str(exc)
    raise RequestError(f"the chat template cannot write this answer: {refusal}")


def _readable(call: Mapping[str, JSON], place: str) -> JSON:
    """A call in a form that every template can write: with an id, a name and an object as arguments."""
    function = call["function"]
    arguments = function["arguments"]
    arguments = arguments if isinstance(arguments, Mapping) else {"unreadable": arguments}
    return new_call(function["name"] or "unknown", arguments, f"{place} ")


def _cut_at(stop: Sequence[str], reply: Completion) -> tuple[Message, Message, str | None]:
    """The message, the message in the form to send back, and the stop string. Both messages are cut after the first
    stop string."""
    content = reply.message["content"]
    matches = [(content.index(string) + len(string), string) for string in stop if string in content]
    if not matches:
        return reply.message, reply.sent_back, None
    end, string = min(matches)
    message = {key: value for key, value in reply.message.items() if key != "tool_calls"}
    return {**message, "content": content[:end]}, {"role": "assistant", "content": content[:end]}, string


def _counts(reply: Completion) -> Mapping[str, float]:
    thought = {"thoughts": 1} if reply.message.get("reasoning_content") else {}
    return {"requests": 1, **reply.usage, **({reply.finish: 1} if reply.finish == "filtered" else {}), **thought}
