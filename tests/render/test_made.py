"""Every spelling of calls that a template of `templates/made` has: read as it is written, and as models break it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.read.calls import CALLS_AT_MOST
from agentrl.render.read.lexer import Lexed
from tests.render.markers import made_files, template_files, tokenizer_of

REFUSES_TOOLS = {"call_behind_a_stop": "stop token '<|message_sep|>' is inside the turn"}
KEEPS = {
    "call_behind_a_stop",
    "ids_in_history_end_twice",
    "ids_in_history_only",
    "json_in_json",
    "name_in_id",
    "prefixed_elements",
    "prefixed_key_tags",
    "reasoning_only_in_prompt",
    "results_looked_up_too_early",
}
"""The others are exact."""
NO_NULLS = {"prefixed_key_tags"}
"""Their templates leave out arguments that are null."""

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a thing.",
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string"},
                "many": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object", "properties": {"at": {"type": "string"}}, "additionalProperties": {}},
                "count": {"type": "integer"},
                "share": {"type": "number"},
                "sure": {"type": "boolean"},
                "none": {"type": "null"},
            },
        },
    },
}
FILES = [pytest.param(path, id=path.stem) for path in made_files()]
WITH_TOOLS = [pytest.param(path, id=path.stem) for path in made_files() if path.stem not in REFUSES_TOOLS]
ALL = [*WITH_TOOLS, *(pytest.param(path, id=path.stem) for path in template_files())]


@functools.cache
def opened(path: Path) -> tuple[Renderer, Any]:
    try:
        return load_renderer(tokenizer_of(path), tools=[TOOL]), tokenizer_of(path)
    except TemplateError as exc:
        pytest.skip(f"refused: {exc}"[:120])


def turn(*arguments: dict[str, Any], content: str = "", thought: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"w3r7y{i}k2m", "type": "function", "function": {"name": "find", "arguments": one}}
        for i, one in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    return {**message, "reasoning_content": thought} if thought else message


def read(renderer: Renderer, tokens: list[int], finish: Any = "stop") -> Any:
    return renderer.parse(tokens, finish, tokens[-1], thinking=renderer.prompt("Go.").thinking)


@pytest.mark.parametrize("path", FILES)
def test_levels(path: Path) -> None:
    renderer = load_renderer(tokenizer_of(path))
    assert renderer.certificate.level == ("keeps-history" if path.stem in KEEPS else "exact")
    assert renderer.certificate.capabilities["calls"] == (path.stem not in REFUSES_TOOLS)


@pytest.mark.parametrize("name", REFUSES_TOOLS)
def test_tools_are_refused_at_load(name: str) -> None:
    tokenizer = tokenizer_of(next(path for path in made_files() if path.stem == name))
    with pytest.raises(TemplateError, match="cannot be used with tools") as refused:
        load_renderer(tokenizer, tools=[TOOL])
    assert REFUSES_TOOLS[name] in str(refused.value).replace("\\", "")
    tokens = load_renderer(tokenizer).encode({"role": "assistant", "content": "Paris"})
    assert read(load_renderer(tokenizer), tokens).content == "Paris"


def values(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Arguments of every JSON type, their strings full of what other formats are made of."""
    bits = ["{", "}", '"', "'", "\\", "\n", "ü漢", "<b>", "</b>", "[", "]", "(x=1)", ", ", "name", "=", ":", "&lt;"]
    for _ in range(6):
        text = "a" + "".join(rng.sample(bits, 5)) + "z"
        yield {
            "what": text,
            "many": [f"m{rng.choice(bits[5:])}m", "b"][: rng.randint(1, 2)],
            "where": {"at": f"x{rng.choice(bits[6:9])}x"},
            "count": rng.randint(-9, 9),
            "share": rng.random(),
            "sure": rng.random() < 0.5,
            "none": None,
        }


@pytest.mark.parametrize("path", ALL)
def test_values_of_every_type_come_back(path: Path) -> None:
    renderer, _ = opened(path)
    for seed, arguments in enumerate(values(random.Random(7))):
        if path.stem in NO_NULLS:
            arguments = {key: value for key, value in arguments.items() if value is not None}
        given = [arguments, {"what": str(seed)}] if renderer.certificate.capabilities["parallel_calls"] else [arguments]
        action = read(renderer, renderer.encode(turn(*given)))
        assert [(call.name, call.arguments, call.error) for call in action.calls] == [("find", a, None) for a in given]
        assert action.content == ""


@pytest.mark.parametrize("path", ALL)
def test_text_and_thoughts_come_back(path: Path) -> None:
    renderer, _ = opened(path)
    capabilities = renderer.certificate.capabilities
    thoughts = ("", "Hm.\n\nSo be it.") if capabilities["thinking"] else ("",)
    for thought in thoughts:
        for content in ("Paris.\nIt is so", "1) { [a] } (b=1)"):
            action = read(renderer, renderer.encode(turn(content=content, thought=thought)))
            assert (action.content, action.reasoning or "", action.calls) == (content, thought, ())
        if capabilities["text_with_calls"] and not thought:
            action = read(renderer, renderer.encode(turn({"what": "x"}, content="Let me see.")))
            assert (action.content, [call.arguments for call in action.calls]) == ("Let me see.", [{"what": "x"}])


def test_what_a_template_leaves_out_of_calls_is_listed() -> None:
    renderer, _ = opened(next(path for path in made_files() if path.stem == "prefixed_key_tags"))
    assert any("null" in departure for departure in renderer.certificate.departures)
    given = {"what": "x", "many": [], "where": {"at": "y", "in": {"of": "z"}}, "none": None}
    [call] = read(renderer, renderer.encode(turn(given))).calls
    assert call.arguments == {key: value for key, value in given.items() if value is not None}


@pytest.mark.parametrize("name", ["cdata_pairs", "cdata_key_tags"])
def test_a_section_may_hold_the_format_itself_but_must_be_closed(name: str) -> None:
    renderer, _ = opened(next(path for path in made_files() if path.stem == name))
    whole = {"what": "a</param></what></function></call:find> <b>&amp;\n]] >", "count": 2}
    assert [call.arguments for call in read(renderer, renderer.encode(turn(whole, {"what": "<"}))).calls] == [
        whole,
        {"what": "<"},
    ]
    written = renderer.decode(renderer.encode(turn({"what": "<one>"}, {"what": "<two>"})))
    action = read(renderer, renderer.encode({"role": "assistant", "content": written.replace("]]>", "", 1)[:-10]}))
    assert action.calls[0].error


@pytest.mark.parametrize("path", WITH_TOOLS)
def test_what_the_template_writes_of_any_conversation_ends_with_the_bridge(path: Path) -> None:
    """Seen of conversations that certification does not walk: with a system message and without, calls in any order."""
    renderer, tokenizer = opened(path)
    parallel, rng = renderer.certificate.capabilities["parallel_calls"], random.Random(11)
    for system in ([], [], [{"role": "system", "content": "Be brief."}], [{"role": "system", "content": "Be brief."}]):
        if system and not renderer.certificate.capabilities["system"]:
            continue
        history: list[dict[str, Any]] = [*system, {"role": "user", "content": "Go."}]
        for number in range(5):
            count = rng.choice((0, 1, 1, 2 if parallel else 1))
            said = turn(*[{"what": f"w{number}"}] * count, content="" if count else f"Answer {number}")
            action = read(renderer, renderer.encode(said))
            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in action.calls
            ]
            history.append({**said, "tool_calls": calls} if calls else said)
            new = [
                {"role": "tool", "tool_call_id": call["id"], "name": "find", "content": f"found {number}"}
                for call in calls
            ] or [{"role": "user", "content": f"And {number}?"}]
            bridge = renderer.decode(renderer.bridge(history, action, new).tokens)
            history += new
            try:
                full = tokenizer.apply_chat_template(history, tools=[TOOL], add_generation_prompt=True, tokenize=False)
            except TypeError:
                pytest.skip("the template takes messages in another form")
            assert full.endswith(bridge), (number, full[-len(bridge) - 40 :], bridge)


@pytest.mark.parametrize("path", ALL)
def test_a_turn_that_was_cut_holds_no_call_and_never_raises(path: Path) -> None:
    renderer, _ = opened(path)
    tokens = renderer.encode(turn({"what": "x", "many": ["a", "b"]}))
    assert read(renderer, tokens, "length").calls == ()
    for length in range(1, len(tokens), 3):
        action = renderer.parse(tokens[:length], "stop", thinking=renderer.prompt("Go.").thinking)
        good = [call.arguments for call in action.calls if call.error is None]
        assert all(given.get("what", "x") == "x" for given in good), renderer.decode(tokens[:length])


@pytest.mark.parametrize("path", WITH_TOOLS)
def test_of_several_calls_one_is_malformed(path: Path) -> None:
    """A token is lost somewhere in the second of three calls: the first is read, nothing raises, nothing is made up."""
    renderer, _ = opened(path)
    if not renderer.certificate.capabilities["parallel_calls"]:
        pytest.skip("one call a turn")
    given = [{"what": "one"}, {"what": "two", "count": 2}, {"what": "three"}]
    whole, first = renderer.encode(turn(*given)), renderer.encode(turn(given[0]))
    start = next(i for i, (a, b) in enumerate(zip(whole, first, strict=False)) if a != b)
    for place in range(start + 2, min(start + 40, len(whole) - 1)):
        tokens = [*whole[:place], *whole[place + 1 :]]
        action = read(renderer, tokens)
        assert action.calls[0].arguments == given[0], renderer.decode(tokens)
        assert len(action.calls) <= 6


@pytest.mark.parametrize("path", ALL)
def test_a_call_in_an_unfinished_thought_is_a_thought(path: Path) -> None:
    renderer, _ = opened(path)
    if not renderer.certificate.capabilities["thinking"]:
        pytest.skip("the template writes no thoughts")
    thought = renderer.encode(turn({"what": "x"}, thought="Hmhm"))
    begun = thought[: next(i for i in range(len(thought)) if "Hmhm" in renderer.decode(thought[:i]))]
    call = renderer.encode(turn({"what": "x"}))[:-1]
    action = renderer.parse([*begun, *call[len(call) // 2 :]], "stop", thinking=renderer.prompt("Go.").thinking)
    assert (action.calls, action.content) == ((), "")
    assert (action.reasoning or "").startswith("Hmhm")


HOSTILE = ("{open}", "[", "{", '{"name": "', "<", "<tool_call>", "find(", "</", "\n", " ", "<think>", "</think>", '"')


def opening_of(renderer: Renderer) -> str:
    text = renderer.decode(renderer.encode(turn({"what": "zqzq"})))
    return text[: text.find("zqzq")]


@pytest.mark.parametrize("path", ALL)
def test_hostile_turns_are_read_in_linear_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the characters that searches look at, and by the calls that are tried: not by a clock."""
    renderer, tokenizer = opened(path)
    work = [0]
    search = Lexed.search

    def counted(self: Lexed, pattern: str, at: int) -> Any:
        before = self.scanned
        found = search(self, pattern, at)
        work[0] += self.scanned - before
        return found

    monkeypatch.setattr(Lexed, "search", counted)
    for hostile in HOSTILE:
        unit = opening_of(renderer) if hostile == "{open}" else hostile
        costs = []
        for count in (500, 1000):
            tokens = tokenizer.encode(unit * count, add_special_tokens=False)
            work[0] = 0
            action = renderer.parse(tokens, "stop")
            assert len(action.calls) <= CALLS_AT_MOST + 1
            costs.append(work[0] / (len(unit) * count))
        assert costs[1] <= 1.5 * costs[0] + 30, (unit, costs)
