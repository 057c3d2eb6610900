"""Instructions, results and what users say: each word stands once and in order in the tokens, whatever the template."""

from __future__ import annotations

import functools
import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat.request import Call, Entry
from agentrl.chat.tokens.writer import Writer
from agentrl.errors import TemplateError
from agentrl.render import load_renderer
from agentrl.types import Action
from tests.gateway.told_oracle import ROOTS, behind_a_reply, misplaced, reply, spelled
from tests.render.conftest import CHATML_TOOLS, LOOKUP, chatml_tokenizer, llama_tokenizer
from tests.render.markers import HERE, made_files, template_files, tokenizer_of

SOAK = bool(os.environ.get("AGENTRL_SOAK"))
FILES = [*template_files(), *made_files()] if SOAK else [path for path in template_files() if path.is_relative_to(HERE)]
REPEATS_ITS_HEAD = {"mistralai-Mistral-Nemo-Instruct-2407"}


@functools.cache
def writer_of(path: Path, tools: bool) -> Writer | None:
    try:
        return Writer(load_renderer(tokenizer_of(path)).bind([LOOKUP] if tools else []))
    except TemplateError:
        return None  # test_survey knows which templates are refused


@pytest.mark.thorough
@pytest.mark.parametrize("tools", [True, False] if SOAK else [True])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_lost(path: Path, tools: bool) -> None:
    writer = writer_of(path, tools)
    if writer is None:
        pytest.skip("this template is refused")
    check_all(writer, again=path.stem in REPEATS_ITS_HEAD)


def test_nothing_is_lost_where_a_turn_holds_one_call() -> None:
    check_all(Writer(load_renderer(llama_tokenizer(), tools=[LOOKUP])))


def check_all(writer: Writer, again: bool = False) -> None:
    for name, shape in ROOTS.items():
        entries = spelled(shape)
        text = writer.renderer.decode(writer.prompt(entries).tokens)
        problem = misplaced(in_prompt_order(writer, entries), text)
        assert not problem, f"{name}: {problem}"
        turns = [i for i, entry in enumerate(entries) if entry.role == "assistant" and i]
        for at in turns if SOAK else turns[:1]:
            check_known(writer, entries, at, again)
            check_bridge(writer, entries, at, again)


def in_prompt_order(writer: Writer, entries: list[Entry]) -> list[Entry]:
    """The entries in their order in the prompt: a template without ids at results gets them in the order of calls.

    Where a turn holds one call, each call comes right before its result, so their order stays.
    """
    certificate = writer.renderer.certificate
    if certificate.results != "place" or not certificate.capabilities.get("parallel_calls", False):
        return entries
    order = {call.id: number for number, call in enumerate(call for entry in entries for call in entry.calls)}
    ordered = list[Entry]()
    for is_result, group in groupby(entries, key=lambda entry: entry.role == "tool"):
        part = list(group)
        ordered += sorted(part, key=lambda entry: order.get(entry.call_id, len(order))) if is_result else part
    return ordered


def check_known(writer: Writer, entries: list[Entry], at: int, again: bool) -> None:
    action, tokens, ids = reply(writer.renderer, entries[at])
    rendered = writer.prompt(entries, {at: (action, tokens)}, ids)
    head = len(writer.prompt(entries[:at]).tokens)
    assert list(rendered.tokens[head : head + len(tokens)]) == tokens or entries[at - 1].role == "assistant"
    expected = in_prompt_order(writer, entries)
    assert misplaced(expected, writer.renderer.decode(rendered.tokens), head_again=again) == ""


def check_bridge(writer: Writer, entries: list[Entry], at: int, again: bool) -> None:
    action, _, ids = reply(writer.renderer, entries[at])
    history = [*writer.messages(entries[:at], root=True), {"role": "assistant", "content": "x"}]
    rendered = writer.bridge(history, action, entries[at + 1 :], ids=ids)
    expected = in_prompt_order(writer, entries)
    assert behind_a_reply(expected, at, writer.renderer.decode(rendered.tokens), head_again=again) == ""


def test_a_template_that_loses_a_role_is_refused_at_start() -> None:
    said = "m.role + '\n' + m.content"
    deaf = CHATML_TOOLS.replace(said, "m.role + '\n' + (m.content if 'system-reminder' not in m.content else '')")
    assert deaf != CHATML_TOOLS
    tokenizer = chatml_tokenizer(template=deaf)
    tokenizer.name_or_path = "models/deaf"
    renderer = load_renderer(tokenizer)
    with pytest.raises(TemplateError, match=r"models/deaf .* a system message after a user would be lost"):
        Writer(renderer)


@pytest.mark.parametrize(
    ("drop", "lacking"),
    [("loop.previtem.role != 'user'", "users_in_a_row"), ("loop.previtem.role != 'tool'", "user_after_tool")],
)
def test_what_a_template_drops_is_written_in_another_form(drop: str, lacking: str) -> None:
    whole = "m.role == 'user' or not loop.first"
    assert whole in CHATML_TOOLS
    kept = f"(m.role == 'user' and (loop.first or {drop})) or (m.role != 'user' and not loop.first)"
    renderer = load_renderer(chatml_tokenizer(template=CHATML_TOOLS.replace(whole, kept)), tools=[LOOKUP])
    assert not renderer.certificate.capabilities[lacking]
    writer = Writer(renderer)
    for name in ("Claude Code begins", "users in a row", "a user behind a result", "reminders behind a result"):
        entries = spelled(ROOTS[name])
        assert misplaced(entries, renderer.decode(writer.prompt(entries).tokens)) == ""


def test_the_oracle_sees_what_is_lost_doubled_or_moved() -> None:
    entries = spelled([Entry("system", "x"), Entry("user", "x"), Entry("assistant", "x"), Entry("user", "long")])
    texts = [entry.text for entry in entries]
    assert misplaced(entries, " ".join(texts)) == ""
    assert misplaced(entries, " ".join([*texts[1:], texts[0]])) == ""  # a head may stand anywhere
    assert "words lost" in misplaced(entries, " ".join(texts)[:-6])
    assert misplaced(entries, " ".join([texts[0], *texts]))
    assert misplaced(entries, " ".join([texts[0], texts[0], *texts]), head_again=True) == ""
    assert misplaced(entries, " ".join([*texts, texts[1]]))
    assert misplaced(entries, " ".join([texts[0], texts[2], texts[1], texts[3]]))


# Clients say anything, anywhere.

WORDS = st.sampled_from(["x", "x", "x", ""])
OTHERS = st.one_of(
    st.builds(Entry, st.sampled_from(["system", "developer", "user"]), WORDS, joined=st.booleans()),
    st.builds(Entry, st.just("tool"), WORDS, call_id=st.sampled_from(["c1", "c2", "c3"])),
)
CALLS = st.lists(st.sampled_from(["c1", "c2", "c3"]), max_size=2, unique=True).map(
    lambda ids: tuple(Call(i, "lookup", {"query": f"for {i}"}) for i in ids)
)
TURNS = st.builds(Entry, st.just("assistant"), st.just("x"), calls=CALLS)
SHAPES = st.lists(st.one_of(OTHERS, TURNS), max_size=8)
ODD = ["Mistral-Small-3.2-24B-Instruct-2506", "openai-gpt-oss-120b", "Qwen-Qwen3-0.6B", "GLM-4.6"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ODD)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(shape=SHAPES, data=st.data())
def test_whatever_clients_say(name: str, shape: list[Entry], data: Any) -> None:
    writer = writer_of(next(path for path in template_files() if path.stem == name), True)
    assert writer is not None
    entries = spelled([Entry("user", "x"), *shape, Entry("user", "x")])
    assert misplaced(entries, writer.renderer.decode(writer.prompt(entries).tokens)) == ""
    turns = [i for i, entry in enumerate(entries) if entry.role == "assistant"]
    if turns:
        at = data.draw(st.sampled_from(turns))
        action, tokens, ids = reply(writer.renderer, entries[at])
        rendered = writer.prompt(entries, {at: (action, tokens)}, ids)
        assert misplaced(entries, writer.renderer.decode(rendered.tokens)) == ""
        assert " ".join(map(str, tokens)) in " ".join(map(str, rendered.tokens))


EXACT = ["Qwen-Qwen2.5-7B-Instruct", "ByteDance-Seed-OSS", "Qwen3-Coder"]


@pytest.mark.parametrize("name", EXACT)
def test_pieces_are_the_templates_own_render_where_it_is_exact(name: str) -> None:
    writer = writer_of(next(path for path in template_files() if path.stem == name), True)
    assert writer is not None
    assert writer.renderer.certificate.level == "exact"
    for shape in ROOTS.values():
        entries = [entry for entry in spelled(shape) if entry.text or entry.calls]
        known = {i: as_written(writer, entry) for i, entry in enumerate(entries) if entry.role == "assistant" and i}
        assert writer.prompt(entries, known).tokens == writer.prompt(entries).tokens


def as_written(writer: Writer, entry: Entry) -> tuple[Action, list[int]]:
    """The entry as the template writes it, in the place of what was sampled."""
    (message,) = writer.messages([entry])
    tokens = writer.renderer.encode(message)
    return writer.renderer.parse(tokens, "stop", tokens[-1]), tokens
