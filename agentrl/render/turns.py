"""Around a sampled turn: the tokens that follow it, and a turn as a model would have sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.errors import TemplateError
from agentrl.render.base import Rendered, RenderedSpan, SpanKind
from agentrl.render.calls import JsonCalls
from agentrl.render.parse import leaves_thinking
from agentrl.render.probe import QUESTION, Profile, Tail, tail
from agentrl.render.template import Template, plain_message
from agentrl.types import Action, Message, ToolCall

CUT_ROUNDS = 8
"""Cutting settles in two or three rounds; what is left after these is scaffolding, which is never cut."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A template and what probing it found."""

    template: Template
    profile: Profile
    calls: JsonCalls

    def bridge(self, action: Action, new: Sequence[Message], budget: int | None = None) -> Rendered:
        """The tokens from the end of the sampled turn to the next: what `Renderer.bridge` promises."""
        rendered = self._bridge(action, new)
        if budget is None or _observed(rendered) <= budget:
            return rendered
        texts = [message.get("content") for message in new]
        contents = [self.template.encode(text) if isinstance(text, str) else [] for text in texts]
        keep = sum(map(len, contents))
        cut = 0
        for _ in range(CUT_ROUNDS):
            over = _observed(rendered) - budget
            if over <= 0 or not keep:
                break
            keep = max(0, keep - over)
            shortened, cut = self._shorten(new, contents, keep)
            rendered = self._bridge(action, shortened)
        return replace(rendered, cut=cut)

    def reopen(self, action: Action) -> Rendered:
        """What lets the model go on after a turn that it closed: the rest of the close and a generation prompt."""
        return self._bridge(action, ())

    def closed(self, action: Action) -> bool:
        """Whether the model itself ended the turn with a stop token."""
        return bool(action.tokens) and action.tokens[-1] in self.profile.stop_token_ids

    def assemble(self, close: str, observation: str, prompt: str, *, after: str = "") -> Rendered:
        """The three texts encoded as one; a token that straddles two of them counts as observation."""
        encode = self.template.encode
        tokens = encode(close + observation + prompt, after=after)
        start = min(len(encode(close, after=after)), len(tokens))
        stop = max(start, len(tokens) - len(encode(prompt, after="" if close or observation else after)))
        parts = spans(("close", start), ("observation", stop - start), ("prompt", len(tokens) - stop))
        return Rendered(tuple(tokens), parts, leaves_thinking(prompt))

    def shorten(self, text: str, tokens: Sequence[int], keep: int) -> tuple[str, int]:
        """The text's first `keep` tokens with a mark that says how many were cut, and that number."""
        if len(tokens) <= keep:
            return text, 0
        cut = len(tokens) - keep
        head = self.template.decode(tokens[:keep]).rstrip("\ufffd")  # half a character
        return f"{head}… [{cut} tokens cut]", cut

    def sampled(self, message: Message) -> str:
        """An assistant message as the text a model would sample after the generation prompt, stop token included."""
        message = plain_message(message)
        if message.get("tool_calls") and self.profile.called is None:
            message = self._spelled(message)
        prompt = self.template.render([QUESTION], generation_prompt=True)
        text = self.template.render([QUESTION, {**message, "role": "assistant"}])
        if not text.startswith(prompt):
            raise TemplateError(
                f"the chat template of {self.template.name} does not begin an assistant's turn with its generation "
                f"prompt: {text[max(0, len(prompt) - 40) : len(prompt)]!r} where that has {prompt[-40:]!r}"
            )
        close = self.profile.called if message.get("tool_calls") and self.profile.called else self.profile.said
        end = text.rfind(close.stop) + len(close.stop)
        if not close.stop or end <= len(prompt):
            raise TemplateError(f"the chat template of {self.template.name} does not close this turn: {text[-40:]!r}")
        return text[len(prompt) : end]

    def _bridge(self, action: Action, new: Sequence[Message]) -> Rendered:
        end = tail(self.template, self.profile, action.calls or _orphans(new), new, content=bool(action.content))
        last = self.template.decode(action.tokens[-1:]) if self.closed(action) else ""
        close = self._unsampled_close(action, end, last)
        return self.assemble(close, end.observation, end.prompt, after=last)

    def _unsampled_close(self, action: Action, end: Tail, last: str) -> str:
        """The part of the close that the model did not sample.

        It sampled the template's stop token: only what follows that. It sampled none (it was cut, or met a stop
        string), or another one (`<|endoftext|>`): that stays, and the template's whole close follows, so that the next
        message stands where the model has always seen it. Whitespace that the template puts before its stop token is
        part of the close where the turn is plain text; after a call, the model wrote the call's own end.
        """
        if last and last == end.stop:
            return end.trail
        lead = "" if action.calls or last else self.profile.said.lead
        return lead + end.stop + end.trail

    def _shorten(
        self, new: Sequence[Message], contents: Sequence[Sequence[int]], keep: int
    ) -> tuple[list[Message], int]:
        """The messages with `keep` content tokens in all; the longest are cut first, to one common length."""
        longest, left = 0, keep
        lengths = sorted(map(len, contents))
        for i, length in enumerate(lengths):
            longest = left // (len(lengths) - i)
            if length > longest:
                break
            left -= length
        messages, cut = list[Message](), 0
        for message, tokens in zip(new, contents, strict=True):
            if len(tokens) <= longest:
                messages.append(message)
                continue
            content, lost = self.shorten(message["content"], tokens, longest)
            messages.append({**message, "content": content})
            cut += lost
        return messages, cut

    def _spelled(self, message: Message) -> Message:
        """The message with its calls as text, for a template that writes none."""
        functions = [call.get("function") or call for call in message["tool_calls"]]
        written = [self.calls.write(function["name"], function["arguments"]) for function in functions]
        content = "\n".join(filter(None, [message["content"], *written]))
        return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def spans(*lengths: tuple[SpanKind, int]) -> tuple[RenderedSpan, ...]:
    """Spans of these lengths one after the other, without the empty ones."""
    at, found = 0, list[RenderedSpan]()
    for kind, length in lengths:
        if length:
            found.append(RenderedSpan(kind, at, at + length))
        at += length
    return tuple(found)


def _orphans(new: Sequence[Message]) -> list[ToolCall]:
    """Calls to stand in for tool messages that answer none: some templates refuse or drop such messages."""
    tools = [message for message in new if message.get("role") == "tool"]
    return [
        ToolCall(message.get("tool_call_id") or f"call_{i}", message.get("name") or "unknown", {})
        for i, message in enumerate(tools)
    ]


def _observed(rendered: Rendered) -> int:
    return sum(span.stop - span.start for span in rendered.spans if span.kind == "observation")
