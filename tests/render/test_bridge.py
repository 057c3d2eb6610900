"""Prompt, bridge, text and encode: the tokens around sampled turns."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agentrl.render import Rendered, Renderer, load_renderer
from agentrl.render.memo import Watch
from agentrl.types import Action, Raw
from tests.render.conftest import CHATML_TOOLS, LOOKUP, chatml_tokenizer

USER = {"role": "user", "content": "Capital of France?"}


def asks(*queries: str, content: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": "lookup", "arguments": {"query": q}}}
        for i, q in enumerate(queries)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def says(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def result(content: str, call_id: str = "call00000") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "lookup", "content": content}


def act(renderer: Renderer, message: dict[str, Any]) -> Action:
    tokens = renderer.encode(message)
    return renderer.parse(tokens, "stop", tokens[-1])


def cut(renderer: Renderer, tokenizer: Any, text: str, matched: str | None = None) -> Action:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return renderer.parse(tokens, "stop" if matched else "length", matched)


def spelled(renderer: Renderer, rendered: Rendered) -> list[tuple[str, str]]:
    return [(span.kind, renderer.decode(rendered.tokens[span.start : span.stop])) for span in rendered.spans]


def test_the_newline_after_the_stop_token_is_the_close(chatml: Renderer) -> None:
    rendered = chatml.bridge([], act(chatml, asks("France")), [result("Paris")])
    assert spelled(chatml, rendered) == [
        ("close", "\n"),
        ("observation", "<|im_start|>user\n<tool_response>\nParis\n</tool_response><|im_end|>\n"),
        ("prompt", "<|im_start|>assistant\n"),
    ]


def test_parallel_results_are_merged_by_the_template(chatml: Renderer) -> None:
    rendered = chatml.bridge([], act(chatml, asks("a", "b")), [result("1"), result("2", "call00001")])
    assert chatml.decode(rendered.tokens).count("<|im_start|>user") == 1
    assert "1\n</tool_response>\n<tool_response>\n2\n" in chatml.decode(rendered.tokens)


def test_llama_quotes_results_and_has_nothing_left_to_close(llama: Renderer) -> None:
    rendered = llama.bridge([], act(llama, asks("France")), [result('Pa"ris')])
    assert spelled(llama, rendered) == [
        ("observation", '<|start_header_id|>ipython<|end_header_id|>\n\n"Pa\\"ris"<|eot_id|>'),
        ("prompt", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ]


@pytest.mark.parametrize("matched", [None, "Par"])
def test_a_turn_without_its_stop_token_gets_the_whole_close(
    chatml: Renderer, tokenizers: Any, matched: str | None
) -> None:
    action = cut(chatml, tokenizers.chatml(), "It is Par", matched)
    rendered = chatml.bridge([], action, [USER])
    assert spelled(chatml, rendered)[0] == ("close", "<|im_end|>\n")


def test_a_cut_call_gets_only_the_stop_token(chatml: Renderer, tokenizers: Any) -> None:
    action = cut(chatml, tokenizers.chatml(), '<tool_call>\n{"name": "loo')
    rendered = chatml.bridge([], action, [result("too long")])
    assert spelled(chatml, rendered)[0] == ("close", "<|im_end|>\n")


def test_another_stop_token_stays_and_the_whole_close_follows(tokenizers: Any) -> None:
    tokenizer = tokenizers.make(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), eos="<|endoftext|>")
    renderer = load_renderer(tokenizer, chat_template=tokenizers.CHATML)
    end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert renderer.stop_token_ids == {end_of_text, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    tokens = [*tokenizer.encode("Paris", add_special_tokens=False), end_of_text]
    action = renderer.parse(tokens, "stop", end_of_text)
    assert action.text == "Paris"
    assert spelled(renderer, renderer.bridge([], action, [USER]))[0] == ("close", "<|im_end|>\n")


def test_generation_config_names_more_stop_tokens(tokenizers: Any, tmp_path: Any) -> None:
    tokenizer = tokenizers.chatml()
    extra = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, extra]}))
    tokenizer.name_or_path = str(tmp_path)
    assert load_renderer(tokenizer).stop_token_ids == {tokenizer.eos_token_id, extra}


def test_a_result_without_a_call_is_carried(llama: Renderer) -> None:
    rendered = llama.bridge([], act(llama, says("Hm.")), [result("unreadable call"), result("two", "call00001")])
    text = llama.decode(rendered.tokens)
    assert text.index("unreadable call") < text.index("two")
    assert "lookup" not in text


def test_a_sentinel_in_a_tool_result_is_text(chatml: Renderer) -> None:
    observed = "zqasked zqsaid zqaskedx </tool_response> zqasked"
    rendered = chatml.bridge([], act(chatml, asks("x")), [result(observed)])
    assert spelled(chatml, rendered)[1][1].count(observed) == 1
    assert spelled(chatml, rendered)[0] == ("close", "\n")


def test_half_a_surrogate_pair_is_replaced(chatml: Renderer) -> None:
    rendered = chatml.bridge([], act(chatml, asks("x")), [result("broken \udc80 byte")])
    assert "broken ? byte" in chatml.decode(rendered.tokens)


def test_bos_once_in_a_prompt_and_never_in_a_bridge(llama: Renderer, tokenizers: Any) -> None:
    bos = tokenizers.llama().bos_token_id
    assert llama.prompt("hi").tokens.count(bos) == 1
    assert llama.prompt("hi").tokens[0] == bos
    action = act(llama, says("Paris"))
    assert bos not in llama.bridge([], action, [USER]).tokens
    assert bos not in llama.text(Raw("go on"), action).tokens


def test_prompt_is_what_the_tokenizer_itself_makes(chatml: Renderer, tokenizers: Any, tool: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    expected = tokenizers.chatml().apply_chat_template(
        messages, tools=[tool], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(chatml.prompt(messages).tokens) == expected
    assert [span.kind for span in chatml.prompt(messages).spans] == ["observation", "prompt"]
    assert chatml.prompt(USER["content"]) == chatml.prompt([USER])


def test_raw_prompt_is_encoded_as_it_stands(llama: Renderer, tokenizers: Any) -> None:
    text = "<|begin_of_text|>Question: 1 + 1?\nAnswer:"
    assert list(llama.prompt(Raw(text)).tokens) == tokenizers.llama().encode(text, add_special_tokens=False)


def test_text_continues_an_open_turn(chatml: Renderer, tokenizers: Any) -> None:
    action = cut(chatml, tokenizers.chatml(), "<search>x</search>", "</search>")
    assert spelled(chatml, chatml.text(Raw("\n<information>y</information>\n"), action)) == [
        ("observation", "\n<information>y</information>\n")
    ]


def test_text_reopens_a_closed_turn(chatml: Renderer) -> None:
    rendered = chatml.text(Raw("Go on."), act(chatml, says("Paris")))
    assert spelled(chatml, rendered) == [
        ("close", "\n"),
        ("prompt", "<|im_start|>assistant\n"),
        ("observation", "Go on."),
    ]


def test_text_knows_whether_a_thought_is_open(chatml: Renderer, tokenizers: Any) -> None:
    tokenizer = tokenizers.chatml()
    tokens = tokenizer.encode("Let me <search>", add_special_tokens=False)
    thinking = chatml.parse(tokens, "stop", "<search>", thinking=True)
    assert chatml.text(Raw(" more"), thinking).thinking
    assert not chatml.text(Raw("</think>"), thinking).thinking
    assert not chatml.text(Raw(" more"), cut(chatml, tokenizer, "Let me", "me")).thinking


def test_a_prompt_that_opens_thinking_says_so(chatml: Renderer, tokenizers: Any) -> None:
    said = "'<|im_start|>assistant\n' + m.content"
    thought = "'<|im_start|>assistant\n<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' + m.content"
    assert said in tokenizers.CHATML
    tokenizer = tokenizers.chatml(tokenizers.CHATML.replace(said, thought))
    renderer = load_renderer(tokenizer, chat_template_kwargs={"thinking_open": True})
    assert renderer.certificate.level == "exact"
    assert renderer.prompt("hi").thinking
    tokens = renderer.encode({"role": "assistant", "content": "Paris", "reasoning_content": "easy"})
    assert renderer.decode(tokens) == "easy\n</think>\n\nParis<|im_end|>"
    action = renderer.parse(tokens, "stop", tokens[-1], thinking=True)
    assert (action.reasoning, action.content) == ("easy", "Paris")
    assert renderer.bridge([], action, [USER]).thinking


def test_a_thought_that_history_does_not_show_is_ended_first(chatml: Renderer) -> None:
    assert not chatml.prompt("hi").thinking
    renderer = chatml.bind(thinking_open=True)
    assert renderer.prompt("hi").thinking
    assert renderer.certificate.level == "keeps-history"
    assert renderer.decode(renderer.encode(says("Paris"))) == "</think>\n\nParis<|im_end|>"


@pytest.mark.parametrize("budget", [80, 120, 300])
def test_budget_cuts_the_longest_contents_and_keeps_the_scaffolding(chatml: Renderer, budget: int) -> None:
    action = act(chatml, asks("a", "b"))
    new = [result("short"), result("lookup 3 days " * 300, "call00001")]
    rendered = chatml.bridge([], action, new, budget=budget)
    kind, text = spelled(chatml, rendered)[1]
    span = rendered.spans[1]
    assert kind == "observation"
    assert span.stop - span.start <= budget
    assert rendered.cut > 0
    assert f"… [{rendered.cut} tokens cut]" in text
    assert "short\n" in text
    assert text.startswith("<|im_start|>user")
    assert text.endswith("\n</tool_response><|im_end|>\n")
    whole = chatml.bridge([], action, new)
    assert whole.cut == 0
    assert chatml.bridge([], action, new, budget=len(whole.tokens)) == whole


def test_budget_smaller_than_the_scaffolding_leaves_the_mark(chatml: Renderer) -> None:
    rendered = chatml.bridge([], act(chatml, asks("a")), [result("晴れ" * 50)], budget=1)
    assert "<tool_response>\n… [" in chatml.decode(rendered.tokens)
    assert "\ufffd" not in chatml.decode(rendered.tokens)


def test_budget_of_text(chatml: Renderer, tokenizers: Any) -> None:
    action = cut(chatml, tokenizers.chatml(), "<search>", "<search>")
    rendered = chatml.text(Raw("lookup 3 days " * 100), action, budget=10)
    assert rendered.cut > 0
    assert chatml.decode(rendered.tokens).endswith(f"… [{rendered.cut} tokens cut]")


def test_encode_takes_arguments_as_json_text(chatml: Renderer) -> None:
    message = asks("France")
    as_text = json.loads(json.dumps(message))
    as_text["tool_calls"][0]["function"]["arguments"] = '{"query": "France"}'
    assert chatml.encode(as_text) == chatml.encode(message)


def test_a_template_without_calls_gets_them_spelled(plain: Renderer) -> None:
    tokens = plain.encode(asks("France", content="Let me see."))
    assert plain.decode(tokens) == (
        'Let me see.\n<tool_call>\n{"name": "lookup", "arguments": {"query": "France"}}\n</tool_call><|im_end|>'
    )
    assert plain.parse(tokens, "stop", tokens[-1]).calls[0].arguments == {"query": "France"}


def test_bind_is_cached_by_value(chatml: Renderer, tool: Any) -> None:
    other = json.loads(json.dumps(tool))
    other["function"]["name"] = "other"
    assert chatml.bind([tool]) is chatml.bind([json.loads(json.dumps(tool))])
    assert chatml.bind([other]) is not chatml.bind([tool])
    assert "other" in chatml.decode(chatml.bind([other]).prompt("hi").tokens)
    assert "lookup" not in chatml.decode(chatml.bind().prompt("hi").tokens)


def test_bridge_cost_does_not_grow_with_history(chatml: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "is_due", lambda *_: False)  # the comparison renders the history
    action, new = act(chatml, asks("France")), [result("Paris")]
    turn = [USER, asks("France"), result("Paris"), says("Paris.")]

    def seconds(history: list[dict[str, Any]]) -> float:
        best = float("inf")
        for _ in range(30):
            start = time.perf_counter()
            chatml.bridge(history, action, new)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(turn * 1000) < 5 * seconds(turn)


def test_a_turn_that_the_template_would_refuse_is_answered_all_the_same() -> None:
    """A policy may sample text beside a call; a template may raise on it. That is no bug of the run."""
    source = CHATML_TOOLS.replace(
        "{{- '<|im_start|>assistant\n' + m.content -}}",
        "{%- if m.content and m.tool_calls -%}{{- raise_exception('either text or calls') -}}{%- endif -%}"
        "{{- '<|im_start|>assistant\n' + m.content -}}",
    )
    assert source != CHATML_TOOLS
    tokenizer = chatml_tokenizer("<tool_call>", "</tool_call>", template=source)
    renderer = load_renderer(tokenizer, tools=[LOOKUP])
    text = 'Hm.\n<tool_call>\n{"name": "lookup", "arguments": {"query": "x"}}\n</tool_call><|im_end|>'
    tokens = tokenizer.encode(text, add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert action.content
    assert action.calls
    bridge = renderer.bridge([], action, [result("Paris", action.calls[0].id)])
    assert renderer.decode(bridge.tokens).startswith("\n<|im_start|>user\n<tool_response>\nParis\n")
