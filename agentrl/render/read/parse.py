"""Read the sampled tokens of one turn as an Action."""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.render.read.calls import CALLS_AT_MOST, Attempt, Block, Types, stray_marks, types_of
from agentrl.render.read.frames import Frames, spans, without
from agentrl.render.read.lexer import BLANK, Lexed, Lexer, is_tag, loose, pieces
from agentrl.render.read.thinking import Thinking
from agentrl.render.template import Template
from agentrl.types import Action, FinishReason, ToolCall, ToolSpec

_NEVER = r"(?!)"


@dataclass(slots=True)
class _Walk:
    """The progress and the results so far of reading a turn."""

    lexed: Lexed
    executable: bool
    cuts: Sequence[tuple[int, int]]
    """The spans of frames that count only at the start of a turn."""
    offset: int = 0
    ended: bool = False
    content: list[tuple[int, int]] = field(default_factory=list)
    """Spans of the text outside of thoughts and calls."""
    thoughts: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)


class Parser:
    """Reads turns in a format of calls. Never raises: a model may sample anything.

    `frames` are left out of an Action's content. Without a `block` (a format of calls) no call is read. `call_ends` are
    stop tokens that end a call and never an answer.
    """

    def __init__(
        self,
        template: Template,
        block: Block | None,
        thinking: Thinking,
        stop_token_ids: frozenset[int],
        frames: Frames | None = None,
        call_ends: frozenset[int] = frozenset(),
    ) -> None:
        frames = frames or Frames()
        self._call_ends = call_ends
        self._block = block
        self._lead = frames.lead
        self._stops = stop_token_ids
        self._ends_more = thinking.ends_more
        self._open, self._close = thinking.opening or _NEVER, loose(thinking.close) or _NEVER
        self._here = re.compile(rf"\s*({self._open})")
        self._anywhere = sum(map(is_tag, pieces(thinking.open))) > 1  # no prose mentions <|channel|>analysis<|message|>
        self._frames, self._first = frames.pattern(), frames.first()
        markers = block.markers if block is not None else ()
        self._lex = Lexer(template, (thinking.open, thinking.close, *markers, *frames.markers))
        others = {piece for text in (thinking.open, thinking.close, *frames.markers) for piece in pieces(text)}
        others |= {template.decode([token]) for token in stop_token_ids}
        self._stray = stray_marks(block, self._lex.atoms, others)
        self._types: Types = {}

    def without_calls(self) -> Parser:
        """The same parser, which reads calls as text."""
        bound = Parser.__new__(Parser)
        bound.__dict__.update(self.__dict__)
        bound._block = None
        return bound

    @property
    def block(self) -> Block | None:
        """The format of calls."""
        return self._block

    @property
    def atoms(self) -> Mapping[int, str]:
        """The texts of single tokens in the markers of thoughts, calls and frames."""
        return self._lex.atoms

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
        walk = self._walk(lexed, thinking, executable=finish_reason == "stop")
        if walk.executable and not walk.attempts and self._block is not None:
            self._read_stray(walk, ended=closed and tokens[-1] in self._call_ends)
        return Action(
            text=lexed.text[len(lead) :],
            content=self._joined(self._content(walk), cut=finish_reason == "length"),
            reasoning="\n".join(filter(None, walk.thoughts)) if walk.thoughts else None,
            calls=tuple(_named(walk.attempts, tokens, turn)),
            finish_reason=finish_reason,
            matched=matched,
            tokens=tuple(tokens),
        )

    def _walk(self, lexed: Lexed, thinking: bool, executable: bool) -> _Walk:
        """Read the whole turn. A call within reasoning is a thought. In a cut turn a call is text."""
        cuts = list(spans(self._first, lexed, 0, len(lexed.text)))
        if self._first is not None and cuts:  # such a frame may look like a call
            lexed.syntax = self._first.sub(lambda match: BLANK * len(match.group()), lexed.syntax)
        walk = _Walk(lexed, executable, cuts)
        thinking = thinking or self._began_within(walk)
        while not walk.ended:
            if thinking:
                self._read_thought(walk)
                thinking = False
            else:
                thinking = self._read_text(walk)
        return walk

    def _read_stray(self, walk: _Walk, ended: bool) -> None:
        """In a turn without a readable call, record a malformed call if the turn holds marks of calls, which are no
        answer.

        `ended`: the turn's stop token is a mark of a call.
        """
        lexed, cuts = walk.lexed, [*walk.cuts, *self._framed(walk)]
        marks = [
            mark.span()
            for start, stop in walk.content
            for mark in self._stray.finditer(lexed.syntax, start, stop)
            if not any(begin <= mark.start() < end for begin, end in cuts)
        ]
        end = len(lexed.text)
        marks += [(end, end)] if ended else []
        if marks:
            raw = lexed.text[walk.content[0][0] if walk.content else end : marks[-1][1]]
            walk.attempts.append(Attempt(marks[0][0], marks[-1][1], raw, error="the call is not opened"))
            walk.cuts = sorted([*walk.cuts, *marks])

    def _began_within(self, walk: _Walk) -> bool:
        """Whether a thought ends before any other part of the turn, so that the prompt must have opened the thought."""
        end = None if self._ends_more else walk.lexed.search(self._close, 0)
        if end is None:
            return False
        think = walk.lexed.search(self._open, 0)
        if think is not None and think.start() <= end.start():
            return False
        call = self._find(walk.lexed, 0) if walk.executable else None
        return call is None or end.start() < call

    def _read_thought(self, walk: _Walk) -> None:
        end = walk.lexed.search(self._close, walk.offset)
        walk.thoughts.append(walk.lexed.text[walk.offset : end.start() if end else None].strip())
        if end is not None:
            walk.offset = end.end()
        else:
            walk.ended = True

    def _read_text(self, walk: _Walk) -> bool:
        """Read up to the next thought, through the next block of calls, or to the end. Returns whether a thought
        follows."""
        think = self._thought(walk.lexed, walk.offset)
        call = self._find(walk.lexed, walk.offset) if walk.executable else None
        if think is not None and (call is None or think[0] < call):
            self._say(walk, think[0])
            walk.offset = think[1]
            return True
        if call is None or self._block is None:
            self._say(walk, len(walk.lexed.text))
            walk.ended = True
            return False
        self._say(walk, call)
        walk.attempts += self._block.read(walk.lexed, call, self._types)
        walk.offset = walk.attempts[-1].stop
        if len(walk.attempts) >= CALLS_AT_MOST:
            rest = walk.lexed.text[walk.offset :]
            walk.attempts.append(Attempt(walk.offset, len(walk.lexed.text), rest, error="too many calls in one turn"))
            walk.ended = True
        return False

    def _thought(self, lexed: Lexed, offset: int) -> tuple[int, int] | None:
        """The span of the marker that opens the next thought: at `offset`, or at the start of a line if the thought is
        also closed.

        Anywhere else the marker is a word of the content: "wrap it in <think>".
        """
        here = self._here.match(lexed.syntax, offset)
        if here is not None:
            return here.span(1)
        match = lexed.search(self._open if self._anywhere else rf"\n[^\S\n]*{self._open}", offset)
        if match is None or self._anywhere:
            return match.span() if match else None
        return match.span() if lexed.search(self._close, match.end()) else None

    def _find(self, lexed: Lexed, offset: int) -> int | None:
        """The offset of the next call: from `offset` on, or after a frame at `offset`."""
        start = self._block.find(lexed, offset) if self._block is not None else None
        if start is not None or self._block is None:
            return start
        frame = self._frames.match(lexed.syntax, offset) if self._frames else None
        return self._block.find(lexed, frame.end()) if frame else None

    def _say(self, walk: _Walk, stop: int) -> None:
        """Add the text up to `stop` to the content."""
        walk.content.append((walk.offset, stop))

    def _framed(self, walk: _Walk) -> Iterator[tuple[int, int]]:
        """Yield the spans of frames within the content."""
        for start, stop in walk.content:
            yield from spans(self._frames, walk.lexed, start, stop)

    def _content(self, walk: _Walk) -> list[str]:
        """The texts of the content, without the frames in them."""
        cuts = sorted([*walk.cuts, *self._framed(walk)])
        parts = list[str]()
        for start, stop in walk.content:
            within = cuts[bisect_left(cuts, (start, 0)) : bisect_left(cuts, (stop, 0))]
            parts += without(walk.lexed.text, start, stop, within)
        return parts

    def _joined(self, parts: Sequence[str], *, cut: bool) -> str:
        """The whole content of a turn. Parts in separate frames become separate lines.

        The spaces at the end of a cut turn are kept, because the next turn may continue the text.
        """
        if self._frames is None:
            return "".join(parts).lstrip() if cut else "".join(parts).strip()
        content = "\n".join(part.strip() for part in parts if part.strip())
        return content + parts[-1][len(parts[-1].rstrip()) :] if content and cut else content


def began_thinking(action: Action, thinking: Thinking) -> bool:
    """Whether a turn began within a thought opened by its generation prompt."""
    return action.reasoning is not None and re.match(rf"\s*{thinking.opening}", action.text) is None


def ended_thinking(action: Action, thinking: Thinking) -> bool:
    """Whether a turn ended within a thought. A marker that is only mentioned opens no thought."""
    if action.reasoning is None:
        return False
    if thinking.ends_more:
        return thinking.left_open(action.text, began_thinking(action, thinking))
    ends = list(re.finditer(loose(thinking.close), action.text))
    return not ends or re.match(rf"\s*{thinking.opening}", action.text[ends[-1].end() :]) is not None


def _named(attempts: Sequence[Attempt], tokens: Sequence[int], turn: int) -> Iterator[ToolCall]:
    """The attempts as calls with their sampled ids, or with generated ids.

    Generated ids depend on the turn's number and tokens: a second parse gives the same ids, and equal calls of two
    turns get different ids. Every template accepts nine letters and digits.
    """
    seed = hashlib.blake2s(array("q", [turn, *tokens]).tobytes(), digest_size=8) if attempts else None
    for i, attempt in enumerate(attempts):
        digest = seed.copy() if seed else hashlib.blake2s()
        digest.update(i.to_bytes(8, "little"))
        yield ToolCall(
            attempt.id or f"c{digest.hexdigest()[:8]}",
            attempt.name,
            attempt.arguments or {},
            attempt.raw,
            attempt.error,
        )
