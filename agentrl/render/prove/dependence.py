"""Find the earlier messages on which the text after a turn depends.

Some templates look for a switch such as `/no_think` in any message, count failed results, or ask for the time. The
template is rendered with symbols in place of earlier texts and ids (`symbols`). The symbols record each question of the
template about a text. Then texts with other answers are rendered, too. A text whose use cannot be traced counts as a
dependence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agentrl.errors import TemplateError
from agentrl.render.context import Context, whole
from agentrl.render.ids import named_id
from agentrl.render.learn.probe import ASKED, QUESTION, SAID, assistant
from agentrl.render.moment import ANOTHER_DAY, at_moment
from agentrl.render.symbols import TIME, Guard, Hole, Part, Trace, UntraceableError, parts_of
from agentrl.render.tail import Tail, stand_in
from agentrl.render.template import RENDER_ERRORS
from agentrl.render.turns import Turns
from agentrl.types import Message, ToolCall

ROLES = ("system", "users", "results", "ids", "turns", "clock")
"""All possible dependences of the text after a turn, in the order of `Certificate.depends`."""
_WHOLE = frozenset(ROLES) - {"system", "clock"}
_REFUSED = (TemplateError, *RENDER_ERRORS)

_CHATS = ("SUAUAUAUA", "SUA", "SUAUA")
_TOOLS = ("SUCTCTCTCTC", "SUCTAUCTCTAUA", "SUC", "SUCTC", "SUCTA", "SUCTCTCTCTCTA")
"""Histories, a letter a message: S system, U user, A answer, C call, T tool result. The last letter is the sampled
turn."""
_TRACED = ("SUAUAUAUA", "SUCTCTCTCTC", "SUCTAUCTCTAUA")
_MOST, _DEEPEST = 120, 2
"""Maximum number of tried texts for a history, and maximum number of simultaneously changed answers."""
_THOUGHTS: Sequence[Mapping[str, str]] = (
    {"reasoning_content": "thought"},
    {"content": "<think>\nthought\n</think>\n\nfine"},
    {"content": "no"},
)
"""Earlier turns unlike the probe's turns. They show whether a template reads earlier turns."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """The dependences of the text after a turn (a subset of `ROLES`), and the context with which all bridges of the
    probes are right."""

    on: frozenset[str]
    context: Context


@dataclass(frozen=True, slots=True)
class _History:
    """A conversation up to the sampled turn, with a text or id for each letter of `letters`."""

    letters: str
    named: bool
    """Whether the ids of calls contain the tool's name."""
    roles: tuple[str, ...] = field(init=False)
    """For each text or id, its role in `ROLES`. Empty for texts of turns, and for the id of the sampled turn, which
    every bridge has."""

    def __post_init__(self) -> None:
        roles = [{"S": "system", "U": "users", "T": "results", "C": "ids"}.get(letter, "") for letter in self.letters]
        last = "" if self.letters[-1] == "C" else roles[-1]
        object.__setattr__(self, "roles", (*roles[:-1], last))

    def values(self) -> list[str]:
        """Ordinary texts and ids. The texts for turns are not used."""
        return [
            (named_id("lookup", i) if self.named else f"call{i:05}") if letter == "C" else f"alpha{i}"
            for i, letter in enumerate(self.letters)
        ]

    def messages(self, values: Sequence[str]) -> tuple[list[Message], list[ToolCall], list[Message]]:
        """Three values: the messages before the sampled turn, the turn's calls, and the messages after it."""
        before, call = list[Message](), ToolCall("", "lookup", {})
        for letter, value in zip(self.letters, values, strict=True):
            if letter == "C":
                call = ToolCall(value, "lookup", {})
                before.append(assistant("", ["x"], [call]))
            elif letter == "T":
                before.append(_result(call, value))
            else:
                before.append(_message(letter, value))
        if self.letters[-1] == "C":
            return before[:-1], [call], [_result(call, "alpha")]
        return before[:-1], [], [{"role": "user", "content": "alpha"}]


def _result(call: ToolCall, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _message(letter: str, content: str) -> Message:
    role = {"S": "system", "U": "user"}.get(letter)
    return {"role": role, "content": content} if role else assistant("fine")


class _Traced(NamedTuple):
    text: str
    """The text after the turn."""
    roles: frozenset[str]
    """The roles whose texts appear in `text`."""
    guards: Sequence[Guard]


@dataclass(slots=True)
class _Search:
    """The search in a history for texts that change the text after the turn."""

    turns: Turns
    history: _History
    symbolic: frozenset[str]
    """The roles whose texts are replaced by symbols."""
    on: set[str] = field(default_factory=set)
    changing: list[list[str]] = field(default_factory=list)
    """Lists of `values` with which the text after the turn differs."""

    def run(self) -> None:
        """Search, and fill `on` and `changing`. Raises UntraceableError if the template cannot be traced."""
        first = self.history.values()
        base = self._traced(first)
        waiting, seen, tried = deque([(first, 0)]), {tuple(first)}, 0
        while waiting:
            values, depth = waiting.popleft()
            changed = {role for role, a, b in zip(self.history.roles, values, first, strict=True) if a != b}
            if self.on & _WHOLE and depth > 1:
                continue
            if tried >= _MOST:
                self.on |= changed
                continue
            tried += 1
            try:
                traced = self._traced(values) if depth else base
            except UntraceableError:
                self.on |= changed
                continue
            except _REFUSED:
                continue
            if traced.roles or traced.text != base.text:
                self.on |= traced.roles | (changed if traced.text != base.text else set())
                self.changing.append(values)
            for others in self._others(traced.guards, values, depth):
                if tuple(others) not in seen:
                    seen.add(tuple(others))
                    waiting.append((others, depth + 1))

    def _others(self, guards: Iterable[Guard], values: Sequence[str], depth: int) -> Iterator[list[str]]:
        """Yield variants of `values` that change the answers to guards: in the first message of a role, in the first
        two and so on, in all messages of the role, and in the last."""
        for role, guard in self._questions(guards) if depth < _DEEPEST else ():
            places = [i for i, other in enumerate(self.history.roles) if other == role]
            counts = range(1, len(places)) if depth == 0 else ()
            texts = _other_texts(guard, values)
            if not texts:
                self.on.add(role)
            chosen = [places, places[-1:], *(places[:count] for count in counts)]
            for number, text in enumerate(texts):
                for which in chosen if number == 0 else chosen[:1]:
                    yield [text(value) if i in which else value for i, value in enumerate(values)]

    def _questions(self, guards: Iterable[Guard]) -> Collection[tuple[str, Guard]]:
        """The different questions about the texts of a symbolic role, each with the role."""
        questions = dict[str, tuple[str, Guard]]()
        for guard in guards:
            role = self.history.roles[guard.hole.key] if guard.hole.key >= 0 else ""
            if role in self.symbolic:
                questions.setdefault(f"{role} {guard.hole.changes} {guard.function} {guard.args}", (role, guard))
        return questions.values()

    def _traced(self, values: Sequence[str]) -> _Traced:
        history, template, profile = self.history, self.turns.template, self.turns.profile
        trace = Trace(values, [i for i, letter in enumerate(history.letters) if letter == "C"])
        symbolic = [
            role in self.symbolic or (letter == "C" and "ids" in self.symbolic)
            for role, letter in zip(history.roles, history.letters, strict=True)
        ]
        texts = [trace.symbol(i) if is_symbol else values[i] for i, is_symbol in enumerate(symbolic)]
        before, calls, new = history.messages(texts)
        conversation = [*before, stand_in(profile, calls, not calls, (SAID, ASKED)), *new]
        clock = "clock" in self.symbolic
        text = template.traced(conversation, trace, generation_prompt=True, symbolic_clock=clock)
        parts = _after_turn(parts_of(text))
        holes = [part for part in parts if isinstance(part, Hole)]
        roles = {"clock" if hole.key == TIME else history.roles[hole.key] for hole in holes}
        after = "".join(part if isinstance(part, str) else _value(part, values) for part in parts)
        return _Traced(after, frozenset(roles - {""}), trace.guards)


def _value(hole: Hole, values: Sequence[str]) -> str:
    return "" if hole.key == TIME else hole.value(values)


def _after_turn(parts: Sequence[Part]) -> list[Part]:
    """The parts of a text after the last sentinel of the sampled turn."""
    texts = [part if isinstance(part, str) else "" for part in parts]
    word = ASKED if any(ASKED in text for text in texts) else SAID
    index = max((i for i, text in enumerate(texts) if word in text), default=-1)
    if index < 0:
        raise UntraceableError("it drops the turn")
    return [texts[index].rpartition(word)[2], *parts[index + 1 :]]


def _other_texts(guard: Guard, values: Sequence[str]) -> list[Callable[[str], str]]:
    """Other texts for which the answer to a guard is different: at most two, or four for a question about a number."""
    words = [word for arg in guard.args for word in ((arg,) if isinstance(arg, str) else _strings(arg)) if word]
    around: list[Callable[[str], str]] = [
        change
        for word in words
        for change in (
            lambda text, word=word: f"{text} {word}",
            lambda text, word=word: f"{word} {text}",
            lambda text, word=word: f"{word}{text}{word}",
            lambda text, word=word: word,
            lambda text, word=word: text.replace(word, ""),
        )
    ]
    plain: list[Callable[[str], str]] = [
        lambda text: "",
        lambda text: f"{text} and so on" * 400,
        lambda text: "7",
        lambda text: f" {text}\n",
        str.upper,
        lambda text: f"{text}?",
    ]
    changes = [change for change in (*around, *plain) if _answers_otherwise(guard, values, change)]
    return changes[: 4 if type(guard.answer) is int else 2]


def _strings(arg: Any) -> list[str]:
    return [item for item in arg if isinstance(item, str)] if isinstance(arg, list | tuple) else []


def _answers_otherwise(guard: Guard, values: Sequence[str], change: Callable[[str], str]) -> bool:
    changed = [change(value) if i == guard.hole.key else value for i, value in enumerate(values)]
    try:
        return not guard.holds(changed)
    except (TypeError, ValueError):
        return False


def dependence_of(turns: Turns, capabilities: Mapping[str, bool]) -> Dependence:
    """Find the dependences of the text after a turn, and the cheapest context with which all bridges are right."""
    results = capabilities.get("tool_results", False)
    histories = [
        _History(letters if capabilities.get("system", False) else letters[1:], turns.template.forms.name_in_id)
        for letters in (*_CHATS, *(_TOOLS if results else ()))
    ]
    on, changing = set[str](), list[tuple[_History, list[str]]]()
    for history in histories:
        if history.letters.removeprefix("S") in {letters[1:] for letters in _TRACED}:
            for search in _searched(turns, history):
                on |= search.on
                changing += [(history, values) for values in search.changing]
        on |= _counted(turns, history)
        on |= _read_turns(turns, history)
    if turns.template.tells_time and "clock" not in on and _tells_time(turns, histories[0]):
        on.add("clock")
    return Dependence(frozenset(on), _context(turns, on, changing))


def _searched(turns: Turns, history: _History) -> Iterator[_Search]:
    """The results of a search with all texts as symbols. If the template cannot be traced, a search for each role."""
    roles = frozenset(history.roles) - {""} | {"clock"}
    search = _Search(turns, history, roles)
    try:
        search.run()
        yield search
        return
    except UntraceableError:
        pass
    except _REFUSED:
        return
    for role in roles:
        search = _Search(turns, history, frozenset({role}))
        try:
            search.run()
        except UntraceableError:
            search.on.add(role)
        except _REFUSED:
            continue
        yield search


def _tail_of(turns: Turns, before: Sequence[Message], calls: Sequence[ToolCall], new: Sequence[Message]) -> Tail | None:
    try:
        return turns.tail(before, calls, new, not calls)
    except TemplateError:
        return None


def _is_right(turns: Turns, history: _History, values: Sequence[str]) -> bool:
    """Whether renders with the context and with the whole history give the same text. True if the template refuses the
    history."""
    before, calls, new = history.messages(values)
    turn = assistant("fine", ["x"] * len(calls), calls)
    expected = _tail_of(turns, whole([*before, turn]), calls, new)
    return expected is None or expected == _tail_of(turns, turns.context.before([*before, turn]), calls, new)


def _counted(turns: Turns, history: _History) -> set[str]:
    """The role "results" or "users" if the number of its messages changes the text after the turn. Else no role."""
    turns = replace(turns, context=Context()) if turns.context.whole else turns
    if _is_right(turns, history, history.values()):
        return set()
    return {"results" if "T" in history.letters else "users"}


def _read_turns(turns: Turns, history: _History) -> set[str]:
    """The role "turns" if the text of earlier turns changes the text after the turn. Else no role."""
    before, calls, new = history.messages(history.values())
    usual = _tail_of(turns, [*before], calls, new)
    for change in _THOUGHTS if any(letter in "AC" for letter in history.letters[:-1]) else ():
        other = [{**message, **change} if message["role"] == "assistant" else message for message in before]
        if _tail_of(turns, other, calls, new) not in (usual, None):
            return {"turns"}
    return set()


def _tells_time(turns: Turns, history: _History) -> bool:
    """Whether the text after a turn depends on the day."""
    before, calls, new = history.messages(history.values())
    usual = _tail_of(turns, before or [QUESTION], calls, new)
    with at_moment(ANOTHER_DAY):
        return usual != _tail_of(turns, before or [QUESTION], calls, new)


def _context(turns: Turns, on: set[str], changing: Sequence[tuple[_History, list[str]]]) -> Context:
    if on & _WHOLE:
        return Context(whole=True)
    contexts = (turns.context, replace(turns.context, system=True)) if "system" in on else (turns.context,)
    for context in contexts:
        if all(_is_right(replace(turns, context=context), history, values) for history, values in changing):
            return context
    return Context(whole=True)
