"""What is added behind a turn that the model did not end itself: what the template writes there, once."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.render import Renderer, load_renderer
from tests.render.conftest import LOOKUP, chatml_tokenizer

USER = {"role": "user", "content": "And?"}
RESULT = {"role": "tool", "tool_call_id": "c1", "name": "lookup", "content": "Paris"}
SPACED = """\
{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '\\n\\n<|im_end|>' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for c in m.tool_calls or [] -%}
{{- '<call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '</call>' -}}
{%- endfor -%}
{{- '\\n\\n<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
CALL = '<call>{"name": "lookup", "arguments": {"query": 3}}</call>'


@pytest.fixture(scope="module")
def spaced() -> tuple[Renderer, Any]:
    """Two newlines stand before every stop token."""
    tokenizer = chatml_tokenizer(template=SPACED)
    return load_renderer(tokenizer, tools=[LOOKUP]), tokenizer


@pytest.mark.parametrize(
    ("text", "matched", "new", "added"),
    [
        (CALL, "</call>", RESULT, "\n\n<|im_end|>"),
        (CALL + "\n", "\n", RESULT, "\n<|im_end|>"),
        (CALL + "\n\n", "\n\n", RESULT, "<|im_end|>"),
        ("Paris", "Paris", USER, "\n\n<|im_end|>"),
        ("Paris\n", "\n", USER, "\n<|im_end|>"),
        ("Paris\n\n", "\n\n", USER, "<|im_end|>"),
        ("Par", None, USER, "\n\n<|im_end|>"),
        ('<call>{"name"', None, USER, "\n\n<|im_end|>"),
    ],
)
def test_what_the_template_writes_before_its_stop_token_is_there_once(
    spaced: tuple[Renderer, Any], text: str, matched: str | None, new: dict[str, Any], added: str
) -> None:
    renderer, tokenizer = spaced
    tokens = tokenizer.encode(text, add_special_tokens=False)
    action = renderer.parse(tokens, "stop" if matched else "length", matched)
    assert bool(action.calls) == (new is RESULT)
    rendered = renderer.bridge([], action, [new])
    assert renderer.decode(rendered.tokens).startswith(added + "<|im_start|>")
    assert renderer.decode(rendered.tokens[: rendered.spans[0].stop]) == added


def test_equal_calls_of_two_turns_have_ids_of_their_own(spaced: tuple[Renderer, Any]) -> None:
    renderer, tokenizer = spaced
    tokens = tokenizer.encode(f"{CALL}\n\n<|im_end|>", add_special_tokens=False)
    ids = [renderer.parse(tokens, "stop", tokens[-1], turn=turn).calls[0].id for turn in (0, 1, 1)]
    assert ids[0] != ids[1] == ids[2]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


IDS_IN_HISTORY = """\
{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '\\n<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- set last = loop.last -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for c in m.tool_calls or [] -%}
{{- '<call>{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{- ('' if last else ', "id": "' + c.id + '"') + '}</call>' -}}
{%- endfor -%}
{{- '\\n<|im_end|>\\n' + ('<|endoftext|>' if m.role == 'assistant' else '') -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


@pytest.mark.parametrize("eos", ["<|endoftext|>", "<|im_end|>"])
def test_the_end_of_sequence_behind_the_end_of_a_message_ends_calls_and_answers(eos: str) -> None:
    """As in Apriel 1.5: history writes ids into calls, so that a call's close is not what both of its renders share."""
    tokenizer = chatml_tokenizer(template=IDS_IN_HISTORY)
    tokenizer.eos_token = eos
    for renderer in (load_renderer(tokenizer), load_renderer(tokenizer, tools=[LOOKUP])):
        said = renderer.encode({"role": "assistant", "content": "Paris"})
        assert [token in renderer.stop_token_ids for token in said] == [False] * (len(said) - 1) + [True]
    call = {"name": "lookup", "arguments": {"query": "x"}}
    asked = renderer.encode({"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": call}]})
    action = renderer.parse(asked, "stop", asked[-1])
    assert [call.arguments for call in action.calls] == [{"query": "x"}]
    assert renderer.decode(asked[-1:]) == renderer.decode(said[-1:])
