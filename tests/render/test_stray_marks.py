"""Marks of calls in a turn without a call: the call lost its opening, and the turn is no answer."""

from __future__ import annotations

import pytest

from agentrl.types import Action
from tests.render.opened_calls import opened, tool

WITHOUT_OPENING = {
    "Qwen-Qwen3-0.6B": '{"name": "find", "arguments": {"code": 1}}\n</tool_call><|im_end|>',
    "Qwen3-Coder": "<parameter=code>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
    "StepFun3.5-Flash": "<parameter=code>\n1\n</parameter>\n</function><|im_end|>",
    "GLM-4.6": "find\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|observation|>",
    "ByteDance-Seed-OSS": "<parameter=code>1</parameter>\n</function>\n</seed:tool_call><seed:eos>",
    "deepseek-ai-DeepSeek-V3.1": 'find<｜tool▁sep｜>{"code": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    "<｜end▁of▁sentence｜>",
    "openai-gpt-oss-120b": "<|channel|>final<|message|>It is 1.<|call|>",
    "Apertus-8B-Instruct": '[{"find": {"code": 1}}]<|tools_suffix|>',
    "name_in_id": 'find:0<|tool_call_argument_begin|>{"code": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
    "bare_keys": "call:find{code:1}<tool_call|><turn|>",
    "pythonic_tagged": "find(code=1)]<|tool_call_end|><|im_end|>",
}
ANSWERS = {
    "Qwen-Qwen3-0.6B": "<think>\nThen </tool_call> ends it.\n</think>\n\nIt is 4.<|im_end|>",
    "Qwen3-Coder": "Ant says <function>:\n\n```xml\n<parameter>\n1\n</function>\n```\n\nNo more.<|im_end|>",
    "StepFun3.5-Flash": "The tag is </function>.<|im_end|>",
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    "It is 4.<|return|>",
    "Mistral-Small-3.2-24B-Instruct-2506": "A list is written [1, 2].</s>",
    "name_in_id": "It is 4: [1].<|im_end|>",
}


def read(name: str, text: str, finish: str = "stop") -> Action:
    renderer, tokenizer = opened(name)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return renderer.bind([tool({"type": "integer"})]).parse(tokens, finish, tokens[-1])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITHOUT_OPENING)
def test_a_close_without_an_opening_is_a_bad_call(name: str) -> None:
    before = "" if WITHOUT_OPENING[name].startswith("<|channel|>") else "Let me see.\n"
    action = read(name, before + WITHOUT_OPENING[name])
    (call,) = action.calls
    assert (call.error, call.arguments) == ("the call is not opened", {})
    assert "1" in call.raw
    assert action.content.startswith(before.strip() or "It is 1.")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_stays_an_answer(name: str) -> None:
    assert not read(name, ANSWERS[name]).calls


def test_marks_of_a_cut_turn_are_text() -> None:
    assert not read("Qwen-Qwen3-0.6B", WITHOUT_OPENING["Qwen-Qwen3-0.6B"], "length").calls


def test_a_mark_that_is_spelled_out_is_text() -> None:
    renderer, tokenizer = opened("Qwen-Qwen3-0.6B")
    tokens = [token for part in ("It is 4.\n</tool", "_call>") for token in tokenizer.encode(part)]
    assert not renderer.bind([tool({})]).parse(tokens, "stop").calls


def test_a_mark_behind_a_call_is_no_other_call() -> None:
    text = '<tool_call>\n{"name": "find", "arguments": {"code": 1}}\n</tool_call>\n</tool_call><|im_end|>'
    (call,) = read("Qwen-Qwen3-0.6B", text).calls
    assert call.error is None
