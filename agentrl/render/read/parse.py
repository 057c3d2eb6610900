"""Sampled tokens of one turn as an Action."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Sequence

from agentrl.render.read.calls import Attempt, Block, Types, types_of
from agentrl.render.read.lexer import Lexed, Lexer, is_tag, loose, pieces
from agentrl.render.read.thinking import Thinking
from agentrl.render.template import Template
from agentrl.types import Action, FinishReason, ToolCall, ToolSpec


class Parser:
    """Reads turns in one format of calls. Never raises: a model may sample anything.

    `frames` is what the template writes around content, such as gpt-oss' `<|channel|>final<|message|>`; it is left out
    of an Action's content. Without a `block` nothing is read as a call.
    """

    def __init__(
        self,
        template: Template,
        block: Block | None,
        thinking: Thinking,
        stop_token_ids: frozenset[int],
        frames: Sequence[str] = (),
    ) -> None:
        self._block = block
        self._stops = stop_token_ids
        self._open, self._close = re.compile(loose(thinking.open)), re.compile(loose(thinking.close))
        tagged = [frame for frame in frames if any(map(is_tag, pieces(frame)))]
        self._frames = re.compile("|".join(map(loose, tagged))) if tagged else None
        markers = block.markers if block is not None else ()
        self._lex = Lexer(template, (thinking.open, thinking.close, *markers, *tagged))
        self._types: Types = {}

    @property
    def reads_calls(self) -> bool:
        """Whether a call would be seen."""
        return self._block is not None

    def bind(self, tools: Sequence[ToolSpec]) -> Parser:
        """The same parser, for calls of these tools."""
        bound = Parser.__new__(Parser)
        bound.__dict__.update(self.__dict__)
        bound._types = types_of(tools)
        return bound

    def __call__(
        self, tokens: Sequence[int], finish_reason: FinishReason, matched: int | str | None, thinking: bool
    ) -> Action:
        closed = bool(tokens) and (tokens[-1] in self._stops or tokens[-1] == matched)
        lexed = self._lex(tokens[:-1] if closed else tokens)
        content, reasoning, attempts = self._walk(lexed, thinking, executable=finish_reason == "stop")
        return Action(
            text=lexed.text,
            content=content,
            reasoning=reasoning,
            calls=tuple(_call(attempt, tokens, i) for i, attempt in enumerate(attempts)),
            finish_reason=finish_reason,
            matched=matched,
            tokens=tuple(tokens),
        )

    def _walk(self, lexed: Lexed, thinking: bool, executable: bool) -> tuple[str, str | None, list[Attempt]]:
        """Content, reasoning and attempts. A call within reasoning is a thought, and in a cut turn it is text."""
        at, content, thoughts, attempts = 0, list[str](), list[str](), list[Attempt]()
        while True:
            if thinking:
                end = self._close.search(lexed.syntax, at)
                thoughts.append(lexed.text[at : end.start() if end else None].strip())
                if end is None:
                    break
                at = end.end()
            think = self._open.search(lexed.syntax, at)
            call = self._block.find(lexed, at) if executable and self._block is not None else None
            thinking = think is not None and (call is None or think.start() < call)
            if call is not None and self._block is not None and not thinking:
                content.append(self._said(lexed, at, call))
                attempts += self._block.read(lexed, call, self._types)
                at = attempts[-1].stop
            elif think is not None:
                content.append(self._said(lexed, at, think.start()))
                at = think.end()
            else:
                content.append(self._said(lexed, at, len(lexed.text)))
                break
        return "".join(content).strip(), "\n".join(filter(None, thoughts)) if thoughts else None, attempts

    def _said(self, lexed: Lexed, start: int, stop: int) -> str:
        if self._frames is None:
            return lexed.text[start:stop]
        parts, at = list[str](), start
        for frame in self._frames.finditer(lexed.syntax, start, stop):
            parts.append(lexed.text[at : frame.start()])
            at = frame.end()
        return "".join([*parts, lexed.text[at:stop]])


def began_thinking(action: Action, thinking: Thinking) -> bool:
    """Whether a turn began within a thought that its generation prompt had opened."""
    return action.reasoning is not None and not action.text.lstrip().startswith(thinking.open)


def _call(attempt: Attempt, tokens: Sequence[int], index: int) -> ToolCall:
    # Made from the turn's tokens, so that parsing twice gives the same id; nine letters and digits suit every template.
    made = hashlib.blake2s(array("q", [*tokens, index]).tobytes(), digest_size=4).hexdigest()
    return ToolCall(attempt.id or f"c{made}", attempt.name, attempt.arguments or {}, attempt.raw, attempt.error)
