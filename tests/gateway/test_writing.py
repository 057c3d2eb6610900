"""Entries to tokens: every text stands where the client put it, and known replies as they were sampled."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentrl.chat.request import Call, Entry
from agentrl.chat.tokens.missing_words import first_message_not_in
from agentrl.chat.tokens.writer import Writer
from agentrl.render import Renderer, load_renderer
from agentrl.render.ids import plain_id
from agentrl.types import Action, CheckCounts
from tests.render.conftest import LOOKUP, chatml_tokenizer
from tests.render.markers import made_files, template_files, tokenizer_of


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(load_renderer(chatml_tokenizer(), tools=[LOOKUP]))


def text(writer: Writer, tokens: Any) -> str:
    return writer.renderer.decode(tokens)


def sampled(renderer: Renderer, content: str, *queries: str) -> tuple[Action, list[int]]:
    """A reply that a model might have sampled; its tokens are not those that its text encodes to."""
    calls = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": "lookup", "arguments": {"query": query}}}
        for i, query in enumerate(queries)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    tokens = [*renderer.encode({"role": "assistant", "content": "S"})[:1], *renderer.encode(message)]
    return renderer.parse(tokens, "stop", tokens[-1]), tokens


ASKS = Entry("assistant", "Let me see.", calls=(Call("gw-1", "lookup", {"query": "x", "filled": False}),))
HEAD = (Entry("system", "one"), Entry("system", "two", joined=True), Entry("developer", "three"), Entry("user", "Go."))


def test_a_root_is_the_templates_own_render(writer: Writer) -> None:
    messages = [{"role": "system", "content": "one\n\ntwo\n\nthree"}, {"role": "user", "content": "Go."}]
    assert writer.messages(HEAD, root=True) == messages
    assert writer.prompt(HEAD) == writer.renderer.prompt(messages)


def test_known_replies_stand_in_a_prompt_as_they_were_sampled(writer: Writer) -> None:
    action, tokens = sampled(writer.renderer, "Let me see.", "x")
    entries = [*HEAD, ASKS, Entry("tool", "found", call_id="gw-1"), Entry("system", "note")]
    rendered = writer.prompt(entries, {4: (action, tokens)}, {"gw-1": action.calls[0].id})
    head = writer.prompt(HEAD).tokens
    assert rendered.tokens[: len(head)] == head
    assert list(rendered.tokens[len(head) : len(head) + len(tokens)]) == tokens
    behind = text(writer, rendered.tokens[len(head) + len(tokens) :])
    assert behind.index("found") < behind.index("<system-reminder>\nnote\n</system-reminder>")
    assert [span.kind for span in rendered.spans] == ["observation", "prompt"]
    assert rendered.spans[-1].stop == len(rendered.tokens)


def test_a_bridge_in_pieces_ends_the_sampled_turn_first(writer: Writer) -> None:
    action, _ = sampled(writer.renderer, "Let me see.", "x")
    entries = [Entry("tool", "found", call_id="gw-1"), Entry("assistant", "Got it."), Entry("user", "Go on.")]
    ids = {"gw-1": action.calls[0].id}
    rendered = writer.bridge(writer.messages(HEAD, root=True), action, entries, ids=ids)
    single = writer.bridge(writer.messages(HEAD, root=True), action, entries[:1], ids=ids)
    assert rendered.tokens[: len(single.tokens)] == single.tokens
    assert [span.kind for span in rendered.spans] == ["close", "observation", "prompt"]
    assert rendered.spans[0] == single.spans[0]
    assert "Got it.<|im_end|>\n<|im_start|>user\nGo on." in text(writer, rendered.tokens)


def test_what_was_compared_is_counted_in_every_piece() -> None:
    writer = Writer(load_renderer(chatml_tokenizer(), tools=[LOOKUP]))
    writer.renderer.turns.memo.state.every = 1  # type: ignore[attr-defined]
    action, _ = sampled(writer.renderer, "Let me see.", "x")
    entries = [Entry("tool", "found", call_id="gw-1"), Entry("assistant", "Got it."), Entry("user", "Go on.")]
    rendered = writer.bridge(writer.messages(HEAD, root=True), action, entries, ids={"gw-1": action.calls[0].id})
    assert rendered.checks == CheckCounts(bridges_checked=2)
    assert writer.opened(rendered, Entry("assistant", "Well, ")).checks == rendered.checks


def test_a_turn_that_the_client_began(writer: Writer) -> None:
    rendered = writer.prompt(HEAD)
    opened = writer.opened(rendered, Entry("assistant", "Well, "))
    assert text(writer, opened.tokens) == text(writer, rendered.tokens) + "Well, "
    assert opened.spans[-1].stop == len(opened.tokens)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("two words", "user: two words"),
        (" two\nwords\n", "user: two words"),
        ('a "quoted"\nline', 'user: "a \\"quoted\\"\\nline"'),
        ("caf\u00e9, na\u00efve", 'user: "caf\\u00e9, na\\u00efve"'),
        ("long " * 40, "user: " + "long " * 40),
        ("long\n" * 40, "user: " + "long\\n" * 40),
        ("nai\u0308ve", "user: na\u00efve"),
        ("", ""),
    ],
)
def test_words_are_found_however_a_template_writes_them(said: str, text: str) -> None:
    assert first_message_not_in([{"role": "user", "content": said}], text) is None


@pytest.mark.parametrize(
    ("said", "text"), [("two words", "two"), ("zq1", "zq12"), ("n", "\\n"), ("long " * 40, "long " * 40 + "er")]
)
def test_a_word_that_is_only_a_part_of_another_is_lost(said: str, text: str) -> None:
    assert (
        first_message_not_in([{"role": "user", "content": "x"}, {"role": "user", "content": f"{said}y"}], f"x {text}")
        == 1
    )


ASKED = (Entry("user", "Go."), Entry("assistant", "", calls=(Call("toolu_1", "lookup", {"query": "x"}),)))


def test_markers_in_what_a_tool_read_become_special_tokens_as_in_any_message(writer: Writer) -> None:
    entries = [*ASKED, Entry("tool", "a<|im_end|>b", call_id="toolu_1")]
    end = writer.renderer.encode({"role": "assistant", "content": "x"})[-1]
    plain = writer.prompt([*entries[:-1], Entry("tool", "ab", call_id="toolu_1")])
    assert writer.prompt(entries).tokens.count(end) == plain.tokens.count(end) + 1


def test_half_a_character_is_replaced(writer: Writer) -> None:
    said = "x\ud800y"
    entries = [Entry("system", said), *ASKED, Entry("tool", said, call_id="toolu_1"), Entry("assistant", said)]
    assert text(writer, writer.prompt(entries).tokens).count("x\ufffdy") == 3
    assert [message["content"] for message in writer.messages(entries, root=True)].count("x\ufffdy") == 3


def test_tools_that_a_result_loads_are_shown_behind_its_text(writer: Writer) -> None:
    loading = Writer(writer.renderer, {"lookup": LOOKUP})
    loaded = Entry("tool", "Found one.", call_id="toolu_1", loads=("lookup", "unheard_of"))
    *_, message = loading.messages([*ASKED, loaded], root=True)
    assert message["content"] == f'Found one.\n\n{json.dumps(LOOKUP)}\n{{"name": "unheard_of"}}'
    *_, message = loading.messages([*ASKED, replace(loaded, text="")], root=True)
    assert message["content"].startswith('{"type": "function"')


@pytest.mark.parametrize(
    ("arguments", "written"),
    [('{"query": broken', {"unreadable": '{"query": broken'}), ("", {}), ({"query": 1}, {"query": 1})],
)
def test_arguments_that_are_no_object_stand_in_one(writer: Writer, arguments: Any, written: Any) -> None:
    (message,) = writer.messages([Entry("assistant", "", calls=(Call("c", "lookup", arguments),))])
    assert message["tool_calls"][0]["function"]["arguments"] == written


def test_ids_suit_every_template(writer: Writer) -> None:
    ids = ["toolu_01A09q90qw90lq917835lq9", "call00000", "functions.lookup:0", "", "x" * 200, "\ud800"]
    made = [plain_id(call_id) for call_id in ids]
    assert all(len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in made)
    assert made[1] == "call00000"
    assert len(set(made)) == len(ids)
    _, asks, gives = writer.messages([*ASKED, Entry("tool", "x", call_id="toolu_1")], root=True)
    assert asks["tool_calls"][0]["id"] == gives["tool_call_id"] == plain_id("toolu_1")


def test_names_stand_in_the_ids_where_a_template_reads_them_there() -> None:
    path = next(path for path in made_files() if path.stem == "name_in_id")
    writer = Writer(load_renderer(tokenizer_of(path), tools=[LOOKUP]))
    written = text(writer, writer.prompt([*ASKED, Entry("tool", "found", call_id="toolu_1")]).tokens)
    assert "functions.lookup:0" in written
    assert plain_id("toolu_1") not in written


def test_the_ids_of_a_model_stay_in_a_history() -> None:
    """Kimi's models count their calls in the ids. A client that was started anew sends these ids back."""
    path = next(path for path in made_files() if path.stem == "name_in_id")
    writer = Writer(load_renderer(tokenizer_of(path), tools=[LOOKUP]))
    asks = Entry("assistant", "", calls=(Call("functions.lookup:3", "lookup", {"query": "x"}),))
    history = [Entry("user", "Go."), asks, Entry("tool", "found", call_id="functions.lookup:3"), Entry("user", "On.")]
    written = text(writer, writer.prompt(history).tokens)
    assert written.count("functions.lookup:3") == 2
    assert "functions.lookup:0" not in written


def test_a_call_that_got_no_result_is_text_to_a_template_that_wants_one() -> None:
    path = next(path for path in template_files() if path.stem == "Mistral-Small-3.2-24B-Instruct-2506")
    writer = Writer(load_renderer(tokenizer_of(path), tools=[LOOKUP]))
    action, _ = sampled(writer.renderer, "", "x")
    assert action.calls
    rendered = writer.bridge(
        [{"role": "user", "content": "Go."}, {"role": "assistant"}], action, [Entry("user", "Stop!")]
    )
    assert "Stop!" in text(writer, rendered.tokens)
