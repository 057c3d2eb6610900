"""For any text: prompt + sampled + bridge is the full render, and parsing and bridging account for every token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.render import Renderer
from agentrl.types import Action, ToolCall

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=40)
"""No markers: what they do is tested by name."""
SAID = TEXT.map(str.strip).filter(bool)
"""A turn that begins with whitespace may merge into the generation prompt in a full render; it is not sampled so."""
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda v: st.lists(v, max_size=3), max_leaves=4)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3)


@pytest.fixture(scope="module", params=["chatml", "llama"])
def family(request: pytest.FixtureRequest, tokenizers: Any) -> tuple[Renderer, Any]:
    return request.getfixturevalue(request.param), getattr(tokenizers, request.param)()


def called(count: int, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    calls = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": "lookup", "arguments": arguments[i]}}
        for i in range(count)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, derandomize=True)
@given(question=TEXT, answer=SAID, results=st.lists(TEXT, min_size=1, max_size=2), arguments=ARGUMENTS, follow=TEXT)
def test_continuation_is_the_full_render(
    family: tuple[Renderer, Any],
    tool: Any,
    question: str,
    answer: str,
    results: list[str],
    arguments: dict[str, Any],
    follow: str,
) -> None:
    renderer, tokenizer = family
    count = len(results) if renderer.certificate.capabilities["parallel_calls"] else 1
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    tokens = list(renderer.prompt(messages).tokens)
    tool_results = [{"role": "tool", "tool_call_id": f"call{i:05}", "content": results[i]} for i in range(count)]
    for turn, new in (
        (called(count, [arguments] * count), tool_results),
        ({"role": "assistant", "content": answer}, [{"role": "user", "content": follow}]),
    ):
        sampled = renderer.encode(turn)
        action = renderer.parse(sampled, "stop", sampled[-1])
        wanted = [call["function"]["arguments"] for call in turn.get("tool_calls", ())]
        assert [call.arguments for call in action.calls] == wanted
        messages += [turn, *new]
        tokens += [*sampled, *renderer.bridge(messages, action, new).tokens]
        full = tokenizer.apply_chat_template(
            messages, tools=[tool], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert tokens == full


@pytest.mark.thorough
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sampled=st.lists(st.integers(0, 560), max_size=40),
    finish=st.sampled_from(["stop", "length", "abort"]),
    thinking=st.booleans(),
    budget=st.none() | st.integers(1, 80),
    observed=TEXT,
)
def test_any_tokens_can_be_parsed_and_followed(
    family: tuple[Renderer, Any],
    sampled: list[int],
    finish: Any,
    thinking: bool,
    budget: int | None,
    observed: str,
) -> None:
    renderer, tokenizer = family
    tokens = [token % len(tokenizer) if token < 500 else len(tokenizer) - 1 - token % 11 for token in sampled]
    action = renderer.parse(tokens, finish, thinking=thinking)
    assert action.tokens == tuple(tokens)
    assert finish == "stop" or action.calls == ()
    answers = [{"role": "tool", "tool_call_id": c.id, "name": c.name, "content": observed} for c in action.calls]
    new = answers or [{"role": "user", "content": observed}]
    rendered = renderer.bridge([], action, new, budget=budget)
    at = 0
    for span in rendered.spans:
        assert span.start == at < span.stop
        at = span.stop
    assert at == len(rendered.tokens)
    assert rendered.spans[-1].kind == "prompt"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(alphabet='<tool_call>/think{}":, namergus\n\\u0', max_size=80), thinking=st.booleans())
def test_almost_calls_never_raise(family: tuple[Renderer, Any], text: str, thinking: bool) -> None:
    renderer, tokenizer = family
    for lead in ("", "<tool_call>", '{"name": "'):
        tokens = tokenizer.encode(lead + text, add_special_tokens=False)
        action = renderer.parse(tokens, "stop", thinking=thinking)
        assert isinstance(action, Action)
        assert all(isinstance(call, ToolCall) for call in action.calls)
