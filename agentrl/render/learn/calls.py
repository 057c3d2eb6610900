"""Learn the format in which a template writes calls: from known calls, and checked by reading other calls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render.formats import FORMATS, spelled
from agentrl.render.formats.conventions import with_second_spellings
from agentrl.render.formats.named_calls import NamedCalls
from agentrl.render.formats.spelled import Spelled
from agentrl.render.ids import named_id
from agentrl.render.read.calls import CALLS_AT_MOST, Attempt, Block, types_of
from agentrl.render.read.lexer import Lexer, pieces
from agentrl.render.template import Forms, Template
from agentrl.types import JSON

KNOWN: Mapping[str, JSON] = {"city": 'Zürich "x"\n', "days": [1, 2.5, None, True], "where": {"a": "{}"}}
"""Arguments of a known call, chosen to break quoting and nesting."""
_PLAIN: Mapping[str, JSON] = {"city": "Ulm's <b> & {x}", "code": "12", "yes": False, "none": None, "many": [{"n": -1}]}
_PLAIN_WORDS = "Plain words."
_NAME = "seek_2"
_LEADS = 6
"""Maximum number of pieces at the end of a prompt that are tried as the beginning of a call."""


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A template's text of a turn with known calls."""

    message: Mapping[str, JSON]
    calls: tuple[tuple[str, str, Mapping[str, JSON]], ...]
    """Id, name and arguments of each call."""


def known_calls(count: int, content: str, forms: Forms) -> list[KnownTurn]:
    """Messages with a single call and, if `count` is 2, with two calls. Their arguments are difficult to quote, plain,
    or empty."""
    hard: list[Mapping[str, JSON]] = [{**KNOWN, "i": i} for i in range(count)]
    turns: list[list[Mapping[str, JSON]]] = [hard[:1], hard, [_PLAIN, {}][:count], [{}]]
    return [_known_turn(content, list(map(forms.writable, arguments)), forms.name_in_id) for arguments in turns]


def derive(
    template: Template, sampled: Callable[[Mapping[str, Any]], str], parallel: bool, content: str, prompt: str
) -> Block | None:
    """Learn the format of calls. `sampled` returns the text of a message as a turn, without stop token and thoughts.

    `prompt` is the template's text before a turn, which may hold the beginning of a first call. None if no format reads
    all calls back and sees no call in a turn without calls.
    """
    name_in_id = template.forms.name_in_id
    count = 2 if parallel else 1
    words = [_words(i, name_in_id) for i in range(count)]
    texts = [sampled(_turn(content, words[: n + 1])) for n in range(count)]

    def typed(value: JSON) -> str:
        call_id, name, arguments = words[0]
        first = next(iter(arguments))
        return sampled(_turn(content, [(call_id, name, {**arguments, first: value})]))

    turns = list(_texts_of(known_calls(count, content, template.forms), sampled))
    silent = sampled({"role": "assistant", "content": _PLAIN_WORDS})
    for lead in _leads(prompt, texts[-1]):
        for block in _candidates(Spelled(tuple(lead + text for text in texts), typed)):
            block = with_second_spellings(replace(block, lead=lead))
            lexer = Lexer(template, block.markers)
            if all(_reads_back(block, lexer, template.encode(text), turn) for turn, text in turns) and (
                lead or block.find(lexer(template.encode(silent)), 0) is None
            ):
                return block
    return None


def _texts_of(
    turns: Sequence[KnownTurn], sampled: Callable[[Mapping[str, Any]], str]
) -> Iterator[tuple[KnownTurn, str]]:
    for i, turn in enumerate(turns):
        try:
            yield turn, sampled(turn.message)
        except TemplateError:  # a template may refuse calls without arguments, but it must write the hard ones
            if i == 0:
                raise


def _known_turn(content: str, arguments: Sequence[Mapping[str, JSON]], name_in_id: bool) -> KnownTurn:
    ids = [named_id(_NAME, i) if name_in_id else f"k7{i}m2x9q{i}" for i in range(len(arguments))]
    calls = tuple((call_id, _NAME, values) for call_id, values in zip(ids, arguments, strict=True))
    return KnownTurn(_turn(content, calls), calls)


def _words(i: int, name_in_id: bool) -> tuple[str, str, Mapping[str, JSON]]:
    return spelled.id_with_name(i) if name_in_id else spelled.call_id(i), spelled.name(i), spelled.arguments(i)


def _turn(content: str, calls: Sequence[tuple[str, str, Mapping[str, JSON]]]) -> dict[str, Any]:
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def _leads(prompt: str, two_calls: str) -> Iterator[str]:
    """Yield candidates for the part of a call in the prompt: "", then longer and longer ends of the prompt that also
    occur between two calls."""
    yield ""
    between = two_calls.partition(spelled.words(0)[-1])[2].partition(spelled.name(1))[0]
    parts = pieces(prompt)
    for count in range(1, min(_LEADS, len(parts)) + 1):
        lead = "".join(parts[-count:])
        if lead not in between:
            return
        if lead.strip():
            yield lead


def _candidates(probes: Spelled) -> Iterator[Block]:
    """Yield the Blocks that the formats learn, then the same Blocks with markers that count only as a whole."""
    blocks = [block for learn in FORMATS for block in learn(probes)]
    yield from blocks
    for block in blocks:
        if isinstance(block.calls, NamedCalls):
            yield replace(block, calls=replace(block.calls, whole=True), whole=True)


def schemas(arguments: Mapping[str, JSON]) -> Mapping[str, Mapping[str, Any]]:
    """A tool's JSON schema for the arguments."""
    return {key: spelled.schema(value) for key, value in arguments.items()}


def _reads_back(block: Block, lexer: Lexer, tokens: Sequence[int], turn: KnownTurn) -> bool:
    lexed, offset, read = lexer(tokens, block.lead), 0, list[Attempt]()
    parameters = {"type": "object", "properties": schemas({**KNOWN, **_PLAIN, "i": 0})}
    types = types_of([{"name": name, "parameters": parameters} for _, name, _ in turn.calls])
    while (start := block.find(lexed, offset)) is not None and len(read) < CALLS_AT_MOST:
        attempts = block.read(lexed, start, types)
        read += attempts
        offset = attempts[-1].stop
    expected = [(None, name, arguments) for _, name, arguments in turn.calls]
    actual = [(attempt.error, attempt.name, attempt.arguments) for attempt in read]
    if actual != expected or lexed.text[offset:].strip():
        return False
    return all(attempt.id in ("", call[0]) for attempt, call in zip(read, turn.calls, strict=True))
