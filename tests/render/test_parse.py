"""Sampled tokens as Actions."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.render import Renderer, load_renderer
from agentrl.types import Action

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"query": "x"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tokenizers: Any) -> Any:
    return tokenizers.chatml()


@pytest.fixture(scope="module")
def read(chatml: Renderer, tokenizer: Any) -> Any:
    def parse(text: str, finish: Any = "stop", **kw: Any) -> Action:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return chatml.parse(tokens, finish, tokens[-1] if finish == "stop" else None, **kw)

    return parse


def test_content_reasoning_and_calls(read: Any) -> None:
    action = read(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}<|im_end|>")
    assert (action.content, action.reasoning) == ("Let me see.", "hm")
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [("lookup", {"query": "x"}, None)] * 2
    assert action.text.endswith("</tool_call>")
    assert action.calls[0].id != action.calls[1].id
    assert action.calls == read(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}<|im_end|>").calls


def test_plain_text_has_no_reasoning(read: Any) -> None:
    assert read("Paris.<|im_end|>").reasoning is None


def test_the_prompt_may_have_opened_the_thought(read: Any) -> None:
    action = read(f"hm {CALL}</think>Paris.<|im_end|>", thinking=True)
    assert (action.content, action.reasoning, action.calls) == ("Paris.", f"hm {CALL}", ())


def test_a_call_in_an_unfinished_thought_is_no_call(read: Any) -> None:
    action = read(f"<think>\n{CALL}<|im_end|>")
    assert (action.calls, action.content, action.reasoning) == ((), "", CALL)


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_cut_turn_executes_nothing(read: Any, finish: str) -> None:
    action = read(f"Hm. {CALL}", finish)
    assert action.calls == ()
    assert action.text == f"Hm. {CALL}"
    assert action.finish_reason == finish


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "lookup", "arguments": {"query": }}', "not valid JSON"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3, "arguments": {}}', 'no "name"'),
        ('{"name": "lookup"}', '"arguments" must be a JSON object'),
        ('{"name": "lookup", "arguments": "{}"}', '"arguments" must be a JSON object'),
        ('{"name": "lookup", "arguments": {"x": NaN}}', "not valid JSON"),
        ('{"name": "lookup", "arguments": {"x": "\\ud800"}}', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"name": "lookup", "arguments": {}} and more', "text after"),
        ("[" * 100_000, "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_malformed_calls_are_kept_in_order(read: Any, body: str, error: str) -> None:
    action = read(f"{CALL}\n<tool_call>\n{body}\n</tool_call>\n{CALL}<|im_end|>")
    assert [call.error is None for call in action.calls] == [True, False, True]
    assert error in (action.calls[1].error or "")
    assert action.calls[1].raw.strip() == body
    assert action.content == ""


def test_an_unclosed_call(read: Any) -> None:
    action = read('<tool_call>\n{"name": "lookup", "arguments": {"query": "x"}}<|im_end|>')
    assert [call.error for call in action.calls] == ["the call is not closed"]
    action = read(f"<tool_call>\n{CALL}<|im_end|>")
    assert [call.error is None for call in action.calls] == [False, True]


def spell(tokenizer: Any, text: str) -> list[int]:
    """The text with no added token used: each character by itself."""
    return [token for char in text for token in tokenizer.encode(char, add_special_tokens=False)]


def test_a_marker_spelled_out_of_ordinary_tokens_is_text(chatml: Renderer, tokenizer: Any) -> None:
    tokens = [*spell(tokenizer, CALL), tokenizer.eos_token_id]
    action = chatml.parse(tokens, "stop", tokens[-1])
    assert (action.calls, action.content) == ((), CALL)


def test_a_marker_that_is_no_token_is_found_by_its_spelling(tokenizers: Any) -> None:
    tokenizer = tokenizers.untagged()
    tokens = [*spell(tokenizer, f"Hm.\n{CALL}"), tokenizer.eos_token_id]
    action = load_renderer(tokenizer).parse(tokens, "stop", tokens[-1])
    assert (action.content, action.calls[0].name) == ("Hm.", "lookup")


def test_an_argument_may_hold_a_spelled_marker(tokenizers: Any) -> None:
    tokenizer = tokenizers.untagged()
    text = '<tool_call>\n{"name": "lookup", "arguments": {"query": "</tool_call>"}}\n</tool_call><|im_end|>'
    tokens = tokenizer.encode(text, add_special_tokens=False)
    (call,) = load_renderer(tokenizer).parse(tokens, "stop", tokens[-1]).calls
    assert (call.error, call.arguments) == (None, {"query": "</tool_call>"})


@pytest.mark.parametrize("tag", ["", "<|python_tag|>", "\n"])
def test_llama_calls_are_bare_json(llama: Renderer, tokenizers: Any, tag: str) -> None:
    text = f'{tag}{{"name": "lookup", "parameters": {{"query": "x"}}}}<|eot_id|>'
    tokens = tokenizers.llama().encode(text, add_special_tokens=False)
    action = llama.parse(tokens, "stop", tokens[-1])
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [("lookup", {"query": "x"}, None)]
    assert action.content == ""


@pytest.mark.parametrize("text", ['{"a": 1}', "Paris.", 'I would call {"name": "lookup", "parameters": {}}'])
def test_llama_text_is_no_call(llama: Renderer, tokenizers: Any, text: str) -> None:
    tokens = tokenizers.llama().encode(f"{text}<|eot_id|>", add_special_tokens=False)
    action = llama.parse(tokens, "stop", tokens[-1])
    assert (action.calls, action.content) == ((), text)


def test_llama_malformed_calls(llama: Renderer, tokenizers: Any) -> None:
    for text in ('{"name": "lookup", "parameters": {', '<|python_tag|>print("x")', '{"name": "lookup"}'):
        tokens = tokenizers.llama().encode(f"{text}<|eot_id|>", add_special_tokens=False)
        (call,) = llama.parse(tokens, "stop", tokens[-1]).calls
        assert call.error


def test_no_tokens_at_all(chatml: Renderer) -> None:
    assert chatml.parse([], "abort") == Action("", "", finish_reason="abort")


TYPED = '{"type": "function", "name": "lookup", "parameters": {"query": "x"}}'


@pytest.mark.parametrize(
    "text",
    [
        TYPED,
        TYPED.replace("parameters", "arguments"),
        f"Let me see. <|python_tag|>{TYPED}",
        '{"id": "c1", "name": "lookup", "parameters": {"query": "x"}}',
        '{"parameters": {"query": "x"}, "name": "lookup"}',
    ],
)
def test_llama_calls_with_keys_as_models_write_them(llama: Renderer, tokenizers: Any, text: str) -> None:
    tokens = tokenizers.llama().encode(f"{text}<|eot_id|>", add_special_tokens=False)
    action = llama.parse(tokens, "stop", tokens[-1])
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [("lookup", {"query": "x"}, None)]
    assert action.content == ("Let me see." if text.startswith("Let") else "")


@pytest.mark.parametrize(
    "text",
    ['{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": }', '{"type": "person", "name": "Ada"}', '{"query": 1}'],
)
def test_an_answer_that_is_an_object_is_no_call(llama: Renderer, tokenizers: Any, text: str) -> None:
    tokens = tokenizers.llama().encode(f"{text}<|eot_id|>", add_special_tokens=False)
    action = llama.parse(tokens, "stop", tokens[-1])
    assert (action.calls, action.content) == ((), text)


@pytest.mark.parametrize("text", ['{"type": "function", "name": "lookup", "parameters": {', '{"name": "lookup", oops'])
def test_a_bare_call_that_breaks_off_is_malformed(llama: Renderer, tokenizers: Any, text: str) -> None:
    tokens = tokenizers.llama().encode(f"{text}<|eot_id|>", add_special_tokens=False)
    (call,) = llama.parse(tokens, "stop", tokens[-1]).calls
    assert "not valid JSON" in (call.error or "")


def test_a_tool_without_required_arguments_may_be_called_without_any(tokenizers: Any) -> None:
    tool = {"name": "now", "description": "Now.", "parameters": {"type": "object", "properties": {}}}
    renderer = load_renderer(tokenizers.chatml(), tools=[{"type": "function", "function": tool}])
    tokens = tokenizers.chatml().encode(
        '<tool_call>\n{"name": "now"}\n</tool_call><|im_end|>', add_special_tokens=False
    )
    (call,) = renderer.parse(tokens, "stop", tokens[-1]).calls
    assert (call.name, call.arguments, call.error) == ("now", {}, None)


def test_a_number_that_is_too_large_is_not_json(read: Any) -> None:
    (call,) = read(CALL.replace('"x"', "1e400") + "<|im_end|>").calls
    assert "not valid JSON" in (call.error or "")
