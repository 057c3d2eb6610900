"""A cache of the template's text in bridges (the scaffold), rendered once for each shape of a turn and its new
messages.

The template's text around a tool's result rarely depends on the result. So the text after a turn is learned as a
function of the strings in the messages (`symbols`), with a guard for each question that the template asks about a
string. A scaffold holds for all strings with the same answers to these questions. For other strings, and for templates
that cannot be traced, the text is rendered.

About 1 bridge in `CHECKED_EVERY` is also rendered and compared, as long as the process runs. The first difference
switches the memo off for the template.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from agentrl.errors import TemplateError
from agentrl.render.context import LEADING
from agentrl.render.learn.close import Close
from agentrl.render.learn.probe import ASKED, SAID
from agentrl.render.learn.profile import Profile
from agentrl.render.markers import GUARD
from agentrl.render.symbols import Guard, Hole, Part, Trace, UntraceableError, parts_of
from agentrl.render.tail import Tail, behind_turn, split, stand_in
from agentrl.render.template import RENDER_ERRORS, Template
from agentrl.types import Message, ToolCall

CHECKED_EVERY = 64
VARIABLE = "AGENTRL_BRIDGE_MEMO"
"""Name of an environment variable: the value "off" switches the memo off for renderers that are loaded afterwards."""

_SHAPES, _ANSWERS = 256, 8
"""Maximum number of shapes, and maximum number of scaffolds for each shape."""
_KEYS = frozenset({"role", "content", "name", "tool_call_id"})
_WORDS = (SAID, ASKED)
_SEED = "zq"
"""The text with which every sentinel (a unique word) begins. A text with this beginning inside is rendered with other
sentinels."""
_FIRST_OPAQUE, _OPAQUE = 0xF0000, 0x1000
"""The first of the private characters that replace holes while a text is cut, and the number of these characters."""

_log = logging.getLogger("agentrl")

Check = Literal["", "equal", "different"]


@dataclass(slots=True)
class MemoState:
    """The state of a template's memo, which all renderers of the template share."""

    off: str = ""
    """The reason why the memo was switched off. Empty while the memo is on."""
    every: int = CHECKED_EVERY
    """About 1 bridge in `every` is also rendered and compared."""
    served: int = 0


@dataclass(slots=True)
class Watch:
    """The check during a run: about 1 bridge in 64 is compared with a render of the whole conversation.

    Certification learns which earlier messages a template reads, but a template may read more than the probes show. All
    renderers of a template share a Watch.
    """

    every: int = CHECKED_EVERY
    """About 1 bridge in `every` is compared."""
    differed: bool = False
    """Whether a bridge has differed. Afterwards every bridge is made from the whole conversation."""

    def is_due(self, history: Sequence[Message], new: Sequence[Message]) -> bool:
        """Whether this bridge is compared. The messages decide, so a run repeats exactly."""
        texts = [str(len(history)), *(str(message.get("content")) for message in new)]
        return zlib.crc32("\0".join(texts).encode(errors="replace")) % self.every == 0

    def differs(self, template: Template, bridged: str, expected: str) -> None:
        """Record a difference between a bridge and a render of the whole conversation, and log a warning."""
        self.differed = True
        _log.warning(
            "a bridge of %s differs from the render of the whole conversation: it is %r, not %r; "
            "every bridge is rendered from the whole conversation from now on, which takes longer. Report this",
            template.name,
            bridged[-80:],
            expected[-80:],
        )


class TailRequest(NamedTuple):
    """The arguments of `tail.tail`, which renders the text after a turn."""

    before: Sequence[Message]
    calls: Sequence[ToolCall]
    new: Sequence[Message]
    content: bool

    def is_chosen(self, every: int) -> bool:
        """Whether this bridge is compared. The messages decide, so a run repeats exactly."""
        last = self.before[-1].get("content") if self.before else ""
        texts = [str(len(self.before)), str(last), *(str(message.get("content")) for message in self.new)]
        return zlib.crc32("\0".join(texts).encode(errors="replace")) % every == 0


class _Shape(NamedTuple):
    key: Hashable
    values: list[str]
    """The contents of the new messages, then all different ids, then the content of the system message, if any."""
    ids: Mapping[str, int]
    """Id -> its index in `values`."""
    system: bool


@dataclass(frozen=True, slots=True)
class _Scaffold:
    """A learned tail with holes for strings, valid for all strings that fulfil the guards."""

    fields: tuple[tuple[Part, ...], ...]
    ends: frozenset[str]
    guards: tuple[Guard, ...]

    def tail(self, values: Sequence[str]) -> Tail | None:
        """The tail with strings in its holes. None if the strings do not fulfil the guards."""
        if not all(guard.holds(values) for guard in self.guards):
            return None
        filled = list[str]()
        for parts in self.fields:
            texts = [part if isinstance(part, str) else part.value(values) for part in parts]
            changed = [text for part, text in zip(parts, texts, strict=True) if isinstance(part, Hole) and part.changes]
            if changed and any(_SEED in text for text in changed):
                return None
            filled.append("".join(texts))
        before_stop, stop, after_stop, observation, prompt = filled
        return Tail(before_stop, stop, after_stop, observation, prompt, self.ends)


@dataclass(slots=True)
class Memo:
    """The learned scaffolds of a template with its tools and arguments."""

    state: MemoState
    reason: str = ""
    """The reason why the last shape could not be learned."""
    scaffolds: dict[Hashable, list[_Scaffold] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, state: MemoState) -> Memo | None:
        """Make a memo. None if the environment variable switches memos off."""
        return None if os.environ.get(VARIABLE) == "off" else cls(state)

    def tail(
        self,
        template: Template,
        profile: Profile,
        arguments: tuple[Sequence[Message], Sequence[ToolCall], Sequence[Message], bool],
        render: Callable[[], Tail],
    ) -> tuple[Tail, Check]:
        """The tail that `render` would return, from a scaffold if possible, and the result of a comparison ("" without
        a comparison)."""
        request = TailRequest(*arguments)
        shape = None if self.state.off else shape_of(template, request)
        if shape is None:
            return render(), ""
        checked = request.is_chosen(self.state.every)
        scaffolds = self.scaffolds.get(shape.key, [])
        for scaffold in scaffolds or ():
            memoised = scaffold.tail(shape.values)
            if memoised is not None:
                self.state.served += 1
                return self._compared(template, memoised, render) if checked else (memoised, "")
        rendered = render()
        if scaffolds is not None:
            self._learn(template, profile, request, shape, rendered)
        return rendered, "equal" if checked else ""

    def _compared(self, template: Template, memoised: Tail, render: Callable[[], Tail]) -> tuple[Tail, Check]:
        try:
            rendered = render()
        except TemplateError:
            self._switch_off(template, "the template refuses it")
            raise
        if rendered == memoised:
            return memoised, "equal"
        self.switch_off(template, rendered, memoised)
        return rendered, "different"

    def switch_off(self, template: Template, rendered: Tail, memoised: Tail) -> None:
        """Switch the memo off, and log the difference between a tail of the memo and the rendered tail."""
        self._switch_off(template, f"it is {rendered.observation[:80]!r}, not {memoised.observation[:80]!r}")

    def _switch_off(self, template: Template, why: str) -> None:
        self.state.off = why
        _log.warning(
            "a memoised bridge of %s differs from its template: %s; every bridge is rendered from now on. Report this",
            template.name,
            why,
        )

    def _learn(self, template: Template, profile: Profile, request: TailRequest, shape: _Shape, rendered: Tail) -> None:
        scaffolds = self.scaffolds.get(shape.key) or []
        try:
            if len(scaffolds) >= _ANSWERS:
                raise UntraceableError("its text depends on what the texts are")
            scaffold = _traced(template, profile, request, shape)
            if scaffold.tail(shape.values) != rendered:
                raise UntraceableError("its text cannot be followed")
            learned: list[_Scaffold] | None = [*scaffolds, scaffold]
        except (UntraceableError, TemplateError, *RENDER_ERRORS) as exc:
            learned, self.reason = None, str(exc)
        while len(self.scaffolds) >= _SHAPES:
            del self.scaffolds[next(iter(self.scaffolds))]
        self.scaffolds[shape.key] = learned


def shape_of(template: Template, request: TailRequest) -> _Shape | None:
    """The shape of a request (everything but its strings), with the strings. None for a request that must be
    rendered."""
    first = request.before[0]
    role = str(first.get("role"))
    system = role in LEADING
    if not all(map(_has_usual_keys, request.new)) or (system and set(first) != {"role", "content"}):
        return None
    ids = _ids_of(request)
    places = {call_id: len(request.new) + i for i, call_id in enumerate(ids)}
    values = [message["content"] for message in request.new]
    values += [*ids, first["content"]] if system else ids
    calls = tuple([(call.name, places[call.id]) for call in request.calls])
    new = tuple([_outline(message, places) for message in request.new])
    names: list[str | None] = [name for name, _ in calls]
    for _, role_of_message, name, _ in new:
        names += role_of_message, name
    if not _can_be_traced(template, values, names) or any("lookup" in call_id for call_id in ids):
        return None
    return _Shape((role, len(request.before), calls, new, request.content), values, places, system)


def _has_usual_keys(message: Message) -> bool:
    return type(message) is dict and _KEYS.issuperset(message) and "content" in message


def _ids_of(request: TailRequest) -> Sequence[str]:
    """The different ids of the calls and of the new messages, in order."""
    ids = [call.id for call in request.calls]
    ids += [call_id for message in request.new if (call_id := message.get("tool_call_id")) is not None]
    return list(dict.fromkeys(ids))


def _outline(message: Message, places: Mapping[str, int]) -> tuple[tuple[str, ...], str | None, str | None, int | None]:
    """A message without its text: the keys in order, role, name, and the index of the id."""
    call_id = message.get("tool_call_id")
    place = None if call_id is None else places.get(call_id)
    return tuple(message), message.get("role"), message.get("name"), place


def _can_be_traced(template: Template, values: Sequence[str], names: Iterable[str | None]) -> bool:
    usual = all(map(_is_usual, values)) and all(name is None or _is_usual(name) for name in names)
    return usual and _is_itself(template, values)


def _is_usual(value: object) -> bool:
    """Whether the value is a string without a sentinel."""
    return type(value) is str and _SEED not in value


def _is_itself(template: Template, values: Sequence[str]) -> bool:
    """Whether encoding would leave the values unchanged: they contain no special tokens to encode as text, and no
    guard's look-alike."""
    if template.spelling is None:
        return True
    pattern = template.spelling.markers.pattern
    odd = (GUARD, "0010fffd", "udffd")
    return not any(pattern.search(value) or any(text in value for text in odd) for value in values)


def _traced(template: Template, profile: Profile, request: TailRequest, shape: _Shape) -> _Scaffold:
    """Learn the scaffold of a request. Raises UntraceableError, or the template's error."""
    trace = Trace(shape.values, shape.ids.values())
    places = shape.ids
    calls = [replace(call, id=trace.symbol(places[call.id])) for call in request.calls]
    new = [dict(message) for message in request.new]
    for i, message in enumerate(new):
        message["content"] = trace.symbol(i)
        if "tool_call_id" in message:
            message["tool_call_id"] = trace.symbol(places[message["tool_call_id"]])
    visible = calls if profile.parallel_calls else calls[:1]
    before = [dict(message) for message in request.before]
    if shape.system:
        before[0]["content"] = trace.symbol(len(shape.values) - 1)
    conversation = [*before, stand_in(profile, visible, request.content, _WORDS), *new]
    opaque = _Opaque()
    text = opaque.text(parts_of(template.traced(conversation, trace, generation_prompt=True)))
    bare = opaque.text(parts_of(template.traced(conversation, trace)))
    _check_prompt(text, bare)
    named = [replace(call, id=opaque.of(Hole(places[call.id]))) for call in request.calls[: len(visible)]]
    close, body, prompt = behind_turn(profile, named, text, bare, _WORDS)
    _check_ends(template, close, body)
    tail = split(template, close, body, prompt)
    fields = (tail.before_stop, tail.stop, tail.after_stop, tail.observation, tail.prompt)
    return _Scaffold(tuple(map(opaque.parts, fields)), tail.ends, tuple(trace.guards))


class _Opaque:
    """Texts with a private character in place of each hole."""

    def __init__(self) -> None:
        self._holes: list[Hole] = []

    def of(self, hole: Hole) -> str:
        if hole not in self._holes:
            self._holes.append(hole)
        if len(self._holes) > _OPAQUE:
            raise UntraceableError("it repeats texts too often")
        return chr(_FIRST_OPAQUE + self._holes.index(hole))

    def text(self, parts: Sequence[Part]) -> str:
        for i, part in enumerate(parts):
            if isinstance(part, str):
                _check_literal(part, follows=i > 0, followed=i + 1 < len(parts))
        return "".join(part if isinstance(part, str) else self.of(part) for part in parts)

    def parts(self, text: str) -> tuple[Part, ...]:
        holes_and_texts = list[Part]()
        for is_hole, run in _runs(text):
            holes_and_texts += [self._holes[ord(char) - _FIRST_OPAQUE] for char in run] if is_hole else [run]
        if any(isinstance(part, Hole) and part.key < 0 for part in holes_and_texts):
            raise UntraceableError("its text holds the time")
        return tuple(holes_and_texts)


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    start = 0
    for index in range(1, len(text) + 1):
        if index == len(text) or _is_opaque(text[index]) != _is_opaque(text[start]):
            yield _is_opaque(text[start]), text[start:index]
            start = index


def _is_opaque(char: str) -> bool:
    return _FIRST_OPAQUE <= ord(char) < _FIRST_OPAQUE + _OPAQUE


def _check_literal(text: str, *, follows: bool, followed: bool) -> None:
    """Raises UntraceableError if a sentinel may arise where a literal text meets a hole, or if the text has private
    characters."""
    starts = followed and any(text.endswith(word[:n]) for word in _WORDS for n in range(1, len(word)))
    ends = follows and any(text.startswith(word[1:]) for word in _WORDS)
    if starts or ends or any(map(_is_opaque, text)):
        raise UntraceableError("its own text looks like a sentinel")


def _check_prompt(text: str, bare: str) -> None:
    """Raises UntraceableError unless `text` begins with `bare` for all strings, or for none."""
    if not text.startswith(bare) and not _differs(text, bare):
        raise UntraceableError("its generation prompt depends on the texts")


def _differs(text: str, start: str) -> bool:
    """Whether the text does not begin with `start` for any strings, because the first difference is in literal text."""
    index = next((i for i, (a, b) in enumerate(zip(text, start, strict=False)) if a != b), None)
    if index is None:
        return not any(map(_is_opaque, start[len(text) :]))
    return not _is_opaque(text[index]) and not _is_opaque(start[index])


def _check_ends(template: Template, close: Close, body: str) -> None:
    """Raises UntraceableError unless `split` cuts the text at the same position for all strings."""
    if not body.startswith(close.before_stop):
        raise UntraceableError("its turn ends otherwise than the probe's")
    rest = body[len(close.before_stop) :]
    if close.stop:
        _check_stop(close, rest)
    else:
        _check_next_marker(template, rest)


def _check_stop(close: Close, rest: str) -> None:
    after = rest.removeprefix(close.stop)
    certain = after == rest or after.startswith(close.after_stop) or _differs(after, close.after_stop)
    if not certain or (after == rest and not _differs(rest, close.stop)):
        raise UntraceableError("the end of its turn depends on the texts")


def _check_next_marker(template: Template, rest: str) -> None:
    literal = rest[: next((i for i, char in enumerate(rest) if _is_opaque(char)), len(rest))]
    special = template.special_in(literal)
    longer = special and any(special[0] in marker and special[0] != marker for marker in template.markers.ids)
    if literal != rest and (special is None or longer or template.special_in(rest) != special):
        raise UntraceableError("what ends its turn depends on the texts")
