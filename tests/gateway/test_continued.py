"""A message that the client began, or that was cut, goes on without a lost space and without a new root."""

from __future__ import annotations

import pytest

from agentrl import load_renderer
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Entry
from agentrl.chat.tokens.writer import Writer
from agentrl.models import load_tokenizer
from tests.gateway.client import ASK, SYSTEM, Talk, told
from tests.render.markers import template_files, tokenizer_of

SURE = Entry("user", "Are you sure?")
CODE, REST = "def f():\n", "    return 1"


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(load_tokenizer("tiny"))


def lengths(t):
    return [len(segment.turns) for segment in t.segments]


def said(text):
    return Entry("assistant", text)


@pytest.mark.parametrize("together", [True, False])
async def test_the_spaces_between_a_beginning_and_its_rest_are_kept(renderer, together):
    talk = Talk(renderer, [REST, "Yes."])
    reply = await talk.says(SYSTEM, ASK, said(CODE), continued=True)
    assert reply.content == REST
    history = [said(CODE + REST)] if together else [said(CODE), told(reply)]
    await talk.says(SYSTEM, ASK, *history, SURE)
    t = talk.end()
    assert lengths(t) == [2], "one root"
    assert f"assistant\n{CODE}{REST}<|im_end|>\n<|im_start|>user\nAre you sure?" in renderer.decode(t.tokens)
    assert talk.audits == []


async def test_a_client_that_puts_them_together_without_spaces_is_known(renderer):
    talk = Talk(renderer, [REST, "Yes."])
    await talk.says(SYSTEM, ASK, said(CODE), continued=True)
    await talk.says(SYSTEM, ASK, said("def f():return 1"), SURE)
    assert lengths(talk.end()) == [2]


async def test_a_reply_that_is_cut_again_and_again_is_one_message(renderer):
    text = "one two \n  three four   five six"
    whole = renderer.encode({"role": "assistant", "content": text})[:-1]
    talk = Talk(renderer, [text])
    parts, given = [""], {"max_tokens": 5}

    def rest(ids):
        return renderer.decode(whole[sum(map(len, sampled)) :])

    sampled: list[list[int]] = []
    talk = Talk(renderer, lambda ids: rest(ids) or "Yes.")
    while sum(map(len, sampled)) < len(whole):
        begun = [said("".join(parts))] if len(parts) > 1 else []
        reply = await talk.says(SYSTEM, ASK, *begun, continued=bool(begun), **given)
        sampled.append([one for one in talk.engine.answers[-1][1] if one not in renderer.stop_token_ids])
        parts.append(reply.content)
        if reply.stop != "length":
            break
    assert "".join(parts) == text
    assert len(parts) > 3
    await talk.says(SYSTEM, ASK, said(text), SURE)
    t = talk.end()
    assert lengths(t) == [len(parts)], "each part is a turn of one segment"
    assert f"assistant\n{text}<|im_end|>\n<|im_start|>user\nAre" in renderer.decode(t.tokens)
    assert [m["content"] for m in t.messages if m["role"] == "assistant"] == [text, "Yes."]


async def test_a_beginning_that_is_continued_is_another_prompt_than_one_that_is_not(renderer):
    talk = Talk(renderer, [REST, "Else."])
    await talk.says(SYSTEM, ASK, said(CODE), continued=True)
    await talk.says(SYSTEM, ASK, said(CODE))
    one, other = [renderer.decode(ids) for ids in talk.engine.requests]
    assert one.endswith(f"assistant\n{CODE}")
    assert other.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert lengths(talk.end()) == [1, 1]


async def test_a_new_root_holds_the_whole_message_that_was_put_together(renderer):
    """As after a summary: the sampled tokens are only a part of that message."""
    talk = Talk(renderer, [REST, "Yes."])
    await talk.says(SYSTEM, ASK, said(CODE), continued=True)
    await talk.says(SYSTEM, Entry("user", "Shorter."), said(CODE + REST), SURE)
    assert f"assistant\n{CODE}{REST}<|im_end|>" in renderer.decode(talk.engine.requests[1])
    assert lengths(talk.end()) == [1, 1]


async def test_an_echo_as_sent_of_a_message_put_together_is_no_new_branch(renderer):
    talk = Talk(renderer, [REST, "Yes."], options=SessionOptions(echo="as_sent"))
    await talk.says(SYSTEM, ASK, said(CODE), continued=True)
    await talk.says(SYSTEM, ASK, said(CODE + REST), SURE)
    assert lengths(talk.end()) == [2]


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_a_beginning_is_written_as_the_template_writes_it(path):
    """`continue_final_message` of transformers, but for thoughts that the generation prompt has opened."""
    renderer = load_renderer(tokenizer_of(path))
    writer = Writer(renderer)
    rendered = writer.prompt([ASK])
    text = renderer.decode(writer.opened(rendered, said("It is ")).tokens)
    prompt = renderer.decode(rendered.tokens)
    assert text.startswith(prompt)
    assert text.endswith("It is ")
    whole = prompt + renderer.decode(renderer.encode({"role": "assistant", "content": "It is Paris."}))
    assert whole.startswith(text), "the model goes on where its own turn would be"
    thinks = renderer.certificate.capabilities.get("thinking")
    thoughtful = writer.opened(rendered, Entry("assistant", "It is ", "So far."))
    if thinks and not rendered.thinking:
        assert "So far." in renderer.decode(thoughtful.tokens)


WINDOWS = {
    "assistant first": [said("Paris was it."), Entry("user", "And Spain?")],
    "only the assistant": [said("Paris was it.")],
    "two of the assistant": [said("Paris was it."), said("Really."), Entry("user", "And Spain?")],
    "instructions first": [SYSTEM, said("Paris was it."), Entry("user", "And Spain?")],
}


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_a_window_that_begins_with_the_models_reply_is_written(path):
    renderer = load_renderer(tokenizer_of(path))
    writer = Writer(renderer)
    action = renderer.parse(renderer.encode({"role": "assistant", "content": "Paris was it."}), "stop")
    for name, entries in WINDOWS.items():
        at = 1 if entries[0] is SYSTEM else 0
        for known in ({}, {at: (action, action.tokens)}):
            text = renderer.decode(writer.prompt(entries, known).tokens)
            assert text.count("Paris was it.") == 1, name
            assert all(entry.text in text for entry in entries), name


async def test_a_session_plays_a_window_that_begins_with_its_own_reply(renderer):
    talk = Talk(renderer, ["Paris.", "Madrid.", "Rome."])
    one = await talk.says(SYSTEM, ASK)
    two = await talk.says(told(one), SURE)
    await talk.says(told(one), SURE, told(two), Entry("user", "And Italy?"))
    assert lengths(talk.end()) == [1, 2]


async def test_only_a_beginning_and_nothing_before(renderer):
    talk = Talk(renderer, ["Paris."])
    assert (await talk.says(said("It is "), continued=True)).content == "Paris."
    assert renderer.decode(talk.engine.requests[0]).endswith("assistant\nIt is ")
