"""Sampled tokens of one turn as an Action."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from agentrl.render.calls import Attempt, JsonCalls
from agentrl.render.lexer import Lexed, Lexer
from agentrl.render.template import Template
from agentrl.types import Action, FinishReason, ToolCall

THINK, END_THINK = "<think>", "</think>"


class Parser:
    """Reads turns in one format of calls. Never raises: a model may sample anything."""

    def __init__(self, template: Template, calls: JsonCalls, stop_token_ids: frozenset[int]) -> None:
        self._calls = calls
        self._stops = stop_token_ids
        self._lex = Lexer(template, (THINK, END_THINK, *calls.markers))

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
                end = lexed.next(at, END_THINK)
                thoughts.append(lexed.text[at : end.start if end else None].strip())
                if end is None:
                    break
                at = end.stop
            think = lexed.next(at, THINK)
            call = self._calls.find(lexed, at) if executable else None
            thinking = think is not None and (call is None or think.start < call)
            if call is not None and not thinking:
                content.append(lexed.text[at:call])
                attempts.append(self._calls.read(lexed, call))
                at = attempts[-1].stop
            elif think is not None:
                content.append(lexed.text[at : think.start])
                at = think.stop
            else:
                content.append(lexed.text[at:])
                break
        return "".join(content).strip(), "\n".join(filter(None, thoughts)) if thoughts else None, attempts


def leaves_thinking(text: str, thinking: bool = False) -> bool:
    """Whether a reader of the text, who may begin within a thought, ends within one."""
    opened, ended = text.rfind(THINK), text.rfind(END_THINK)
    return opened > ended if opened != ended else thinking


def began_thinking(action: Action) -> bool:
    """Whether a turn began within a thought that its generation prompt had opened."""
    return action.reasoning is not None and not action.text.lstrip().startswith(THINK)


def _call(attempt: Attempt, tokens: Sequence[int], index: int) -> ToolCall:
    # Made from the turn's tokens, so that parsing twice gives the same id; nine letters and digits suit every template.
    made = hashlib.blake2s(array("q", [*tokens, index]).tobytes(), digest_size=4).hexdigest()
    return ToolCall(attempt.id or f"c{made}", attempt.name, attempt.arguments or {}, attempt.raw, attempt.error)
