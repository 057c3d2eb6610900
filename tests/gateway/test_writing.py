"""Entries to tokens: every text stands where the client put it, and known replies as they were sampled."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.gateway.lost import lost
from agentrl.gateway.request import Call, Entry
from agentrl.gateway.writing import Writer
from agentrl.render import Renderer, load_renderer
from agentrl.types import Action
from tests.render.conftest import LOOKUP, chatml_tokenizer


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


def test_a_turn_that_the_client_began(writer: Writer) -> None:
    rendered = writer.prompt(HEAD)
    opened = writer.opened(rendered, "Well, ")
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
    assert lost([{"role": "user", "content": said}], text) is None


@pytest.mark.parametrize(
    ("said", "text"), [("two words", "two"), ("zq1", "zq12"), ("n", "\\n"), ("long " * 40, "long " * 40 + "er")]
)
def test_a_word_that_is_only_a_part_of_another_is_lost(said: str, text: str) -> None:
    assert lost([{"role": "user", "content": "x"}, {"role": "user", "content": f"{said}y"}], f"x {text}") == 1
