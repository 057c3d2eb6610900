"""Sampled tokens of one turn as an Action."""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from agentrl.render.read.calls import CALLS_AT_MOST, Attempt, Block, Types, types_of
from agentrl.render.read.frames import Frames, spans, without
from agentrl.render.read.lexer import BLANK, Lexed, Lexer, loose
from agentrl.render.read.thinking import Thinking
from agentrl.render.template import Template
from agentrl.types import Action, FinishReason, ToolCall, ToolSpec

_NEVER = r"(?!)"


class Parser:
    """Reads turns in one format of calls. Never raises: a model may sample anything.

    `frames` are left out of an Action's content. Without a `block` nothing is read as a call.
    """

    def __init__(
        self,
        template: Template,
        block: Block | None,
        thinking: Thinking,
        stop_token_ids: frozenset[int],
        frames: Frames | None = None,
    ) -> None:
        frames = frames or Frames()
        self._block = block
        self._lead = frames.lead
        self._stops = stop_token_ids
        self._ends_more = thinking.ends_more
        self._open, self._close = loose(thinking.open) or _NEVER, loose(thinking.close) or _NEVER
        self._frames, self._first = frames.pattern(), frames.first()
        markers = block.markers if block is not None else ()
        self._lex = Lexer(template, (thinking.open, thinking.close, *markers, *frames.markers))
        self._types: Types = {}

    def without_calls(self) -> Parser:
        """The same parser, to which a call is text."""
        bound = Parser.__new__(Parser)
        bound.__dict__.update(self.__dict__)
        bound._block = None
        return bound

    @property
    def block(self) -> Block | None:
        """How calls are spelled."""
        return self._block

    def bind(self, tools: Sequence[ToolSpec]) -> Parser:
        """The same parser, for calls of these tools."""
        bound = Parser.__new__(Parser)
        bound.__dict__.update(self.__dict__)
        bound._types = types_of(tools)
        bound._block = self._block.bind(tuple(bound._types)) if self._block is not None else None
        return bound

    def __call__(
        self,
        tokens: Sequence[int],
        finish_reason: FinishReason,
        matched: int | str | None,
        thinking: bool,
        turn: int = 0,
    ) -> Action:
        closed = bool(tokens) and (tokens[-1] in self._stops or tokens[-1] == matched)
        lead = "" if thinking else self._lead
        lexed = self._lex(tokens[:-1] if closed else tokens, lead)
        content, reasoning, attempts = self._walk(lexed, thinking, executable=finish_reason == "stop")
        return Action(
            text=lexed.text[len(lead) :],
            content=content,
            reasoning=reasoning,
            calls=tuple(_named(attempts, tokens, turn)),
            finish_reason=finish_reason,
            matched=matched,
            tokens=tuple(tokens),
        )

    def _walk(self, lexed: Lexed, thinking: bool, executable: bool) -> tuple[str, str | None, list[Attempt]]:
        """Content, reasoning and attempts. A call within reasoning is a thought, and in a cut turn it is text."""
        at, content, thoughts, attempts = 0, list[str](), list[str](), list[Attempt]()
        cuts = list(spans(self._first, lexed, 0, len(lexed.text)))
        if self._first is not None and cuts:  # such a frame may look like a call
            lexed.syntax = self._first.sub(lambda match: BLANK * len(match.group()), lexed.syntax)
        while True:
            if thinking:
                end = lexed.search(self._close, at)
                thoughts.append(lexed.text[at : end.start() if end else None].strip())
                if end is None:
                    break
                at = end.end()
            think = lexed.search(self._open, at)
            call = self._find(lexed, at) if executable else None
            if at == 0 and self._ends_first(lexed, think, call):
                thinking = True
                continue
            thinking = think is not None and (call is None or think.start() < call)
            if call is not None and self._block is not None and not thinking:
                content.append(self._said(lexed, at, call, cuts))
                attempts += self._block.read(lexed, call, self._types)
                at = attempts[-1].stop
                executable = len(attempts) < CALLS_AT_MOST
                if not executable:
                    attempts.append(Attempt(at, len(lexed.text), lexed.text[at:], error="too many calls in one turn"))
                    break
            elif think is not None:
                content.append(self._said(lexed, at, think.start(), cuts))
                at = think.end()
            else:
                content.append(self._said(lexed, at, len(lexed.text), cuts))
                break
        return "".join(content).strip(), "\n".join(filter(None, thoughts)) if thoughts else None, attempts

    def _ends_first(self, lexed: Lexed, think: re.Match[str] | None, call: int | None) -> bool:
        """Whether the turn ends a thought before it opens one: it began within it, unsaid."""
        if self._ends_more:
            return False
        end = lexed.search(self._close, 0)
        later = min(len(lexed.text) if think is None else think.start(), len(lexed.text) if call is None else call)
        return end is not None and end.start() < later

    def _find(self, lexed: Lexed, at: int) -> int | None:
        """Where the next call opens: from here on, or from behind a frame that stands right here."""
        found = self._block.find(lexed, at) if self._block is not None else None
        if found is not None or self._block is None:
            return found
        frame = self._frames.match(lexed.syntax, at) if self._frames else None
        return self._block.find(lexed, frame.end()) if frame else None

    def _said(self, lexed: Lexed, start: int, stop: int, cuts: Sequence[tuple[int, int]]) -> str:
        first = cuts[bisect_left(cuts, (start, 0)) : bisect_left(cuts, (stop, 0))]
        framed = [*first, *spans(self._frames, lexed, start, stop)]
        return without(lexed.text, start, stop, sorted(framed)) if framed else lexed.text[start:stop]


def began_thinking(action: Action, thinking: Thinking) -> bool:
    """Whether a turn began within a thought that its generation prompt had opened."""
    return action.reasoning is not None and not action.text.lstrip().startswith(thinking.open)


def _named(attempts: Sequence[Attempt], tokens: Sequence[int], turn: int) -> Iterator[ToolCall]:
    """Attempts under the ids that were sampled, or that are made here.

    Made from the turn's number and tokens: parsing it twice gives the same ids, and equal calls of two turns have two.
    Nine letters and digits suit every template.
    """
    seed = hashlib.blake2s(array("q", [turn, *tokens]).tobytes(), digest_size=8) if attempts else None
    for i, attempt in enumerate(attempts):
        made = seed.copy() if seed else hashlib.blake2s()
        made.update(i.to_bytes(8, "little"))
        yield ToolCall(
            attempt.id or f"c{made.hexdigest()[:8]}", attempt.name, attempt.arguments or {}, attempt.raw, attempt.error
        )
