"""What certification says of each real chat template, so that a change of any verdict shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Certificate, Renderer, load_renderer
from tests.render.markers import GIVEN, HERE, made_files, template_files, tokenizer_of
from tests.render.survey_tool import TOOL

EXACT, KEEPS = "exact", "keeps-history"
FUNCTIONS = "needs a variable that it was not given (see chat_template_kwargs): 'functions' is undefined"

LEVELS = {
    "Apertus-8B-Instruct": KEEPS,
    "Apriel-1.6-15b-Thinker-fixed": KEEPS,
    "ByteDance-Seed-OSS": EXACT,
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": KEEPS,
    "GLM-4.6": KEEPS,
    "HuggingFaceTB-SmolLM3-3B": KEEPS,
    "Kimi-K2-Instruct": KEEPS,
    "LFM2-8B-A1B": KEEPS,
    "MiniMax-M2": KEEPS,
    "Mistral-Small-3.2-24B-Instruct-2506": KEEPS,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": KEEPS,
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": KEEPS,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": KEEPS,
    "Qwen-Qwen2.5-7B-Instruct": EXACT,
    "Qwen-Qwen3-0.6B": KEEPS,
    "Qwen3-Coder": EXACT,
    "StepFun3.5-Flash": KEEPS,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": KEEPS,
    "deepseek-ai-DeepSeek-V3.1": KEEPS,
    "fireworks-ai-llama-3-firefunction-v2": FUNCTIONS,
    "google-gemma-2-2b-it": KEEPS,
    "google-gemma-4-31B-it": KEEPS,
    "ibm-granite-granite-3.3-2B-Instruct": KEEPS,
    "meetkai-functionary-medium-v3.1": EXACT,
    "meta-llama-Llama-3.1-8B-Instruct": EXACT,
    "meta-llama-Llama-3.2-3B-Instruct": EXACT,
    "microsoft-Phi-3.5-mini-instruct": KEEPS,
    "mistralai-Mistral-Nemo-Instruct-2407": KEEPS,
    "openai-gpt-oss-120b": KEEPS,
    "tencent-Hy3": KEEPS,
}
"""Template -> level, or the reason for which it is refused."""

NO_TOOLS = {"google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct", "HuggingFaceTB-SmolLM3-3B"}
"""Do not show tools to the model (SmolLM3 takes them under another name)."""
LEFT_OUT = {*NO_TOOLS, "LFM2-8B-A1B", "ibm-granite-granite-3.3-2B-Instruct"}
"""Leave calls out of history, so that their format cannot be read off."""
BREAKS = {"Kimi-K2-Instruct": "does what the template sandbox of transformers forbids: access to attribute 'append'"}
"""Break on calls: they serve without tools."""
NO_CALLS = {*LEFT_OUT, *BREAKS}

ARGUMENTS = {"what": '3 "things"\nor </b> more: {x}', "where": {"at": ["Ulm", 7]}, "many": [1.5, True, None, "ü"]}

files = [pytest.param(path, id=path.stem) for path in template_files() if path.stem in LEVELS]


def certified(path: Path) -> Renderer | None:
    try:
        return load_renderer(tokenizer_of(path))
    except TemplateError:
        return None


@pytest.mark.parametrize("path", files)
def test_level(path: Path) -> None:
    expected = LEVELS[path.stem]
    if expected not in (EXACT, KEEPS):
        with pytest.raises(TemplateError) as refused:
            load_renderer(tokenizer_of(path))
        assert expected in str(refused.value)
        return
    certificate = load_renderer(tokenizer_of(path)).certificate
    assert certificate.level == expected
    assert bool(certificate.departures) == (expected == KEEPS)
    assert certificate.capabilities["calls"] == (path.stem not in NO_CALLS)


def test_every_template_of_the_repository_is_in_the_table() -> None:
    assert {path.stem for path in template_files() if path.is_relative_to(HERE)} <= set(LEVELS)


def turn(count: int) -> dict[str, Any]:
    calls = [
        {"id": f"abc12345{i}", "type": "function", "function": {"name": "find", "arguments": ARGUMENTS}}
        for i in range(count)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize("path", files)
def test_calls_are_read_as_the_template_writes_them(path: Path) -> None:
    renderer = certified(path)
    if renderer is None:
        assert LEVELS[path.stem] == FUNCTIONS
        return
    if path.stem in BREAKS:
        with pytest.raises(TemplateError, match=BREAKS[path.stem]):
            renderer.bind([TOOL])
        return
    bound = renderer.bind([TOOL])
    count = 2 if renderer.certificate.capabilities["parallel_calls"] else 1
    thinking = bound.prompt("Go.").thinking
    tokens = bound.encode(turn(count))
    action = bound.parse(tokens, "stop", tokens[-1], thinking=thinking)
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [("find", ARGUMENTS, None)] * count
    assert action.content == ""
    assert bound.parse(tokens, "length", thinking=thinking).calls == ()


@pytest.mark.parametrize("path", files)
def test_what_a_turn_says_is_read_without_what_frames_it(path: Path) -> None:
    renderer = certified(path)
    if renderer is None:
        return
    tokens = renderer.encode({"role": "assistant", "content": "Ulm, at 7."})
    action = renderer.parse(tokens, "stop", tokens[-1], thinking=renderer.prompt("Go.").thinking)
    assert (action.content, action.calls) == ("Ulm, at 7.", ())


def by_name(name: str) -> tuple[Renderer, Any]:
    path = next((path for path in [*template_files(), *made_files()] if path.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the repository; {GIVEN} names no folder that has it")
    return load_renderer(tokenizer_of(path)).bind([TOOL]), tokenizer_of(path)


SAMPLED = {
    "gpt-oss as the model writes it": (
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.find "
        '<|constrain|>json<|message|>{"what": "x"}<|call|>',
    ),
    "no space in the array": (
        "mistralai-Mistral-Nemo-Instruct-2407",
        '[TOOL_CALLS] [{"name":"find","arguments":{"what":"x"}}]</s>',
    ),
    "arguments on one line": (
        "Qwen3-Coder",
        "<tool_call><function=find><parameter=what>x</parameter></function></tool_call><|im_end|>",
    ),
    "spaces and an outer block left out": (
        "deepseek-ai-DeepSeek-V3.1",
        '<｜tool▁call▁begin｜> find <｜tool▁sep｜> {"what" : "x"}\n<｜tool▁call▁end｜><｜end▁of▁sentence｜>',
    ),
    "spaces in an object": (
        "bare_keys",
        '<|tool_call>call:find{ what: <|"|>x<|"|> }<tool_call|><turn|>',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_models_write_calls_more_freely_than_templates(name: str) -> None:
    template, text = SAMPLED[name]
    renderer, tokenizer = by_name(template)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert [(call.name, call.arguments, call.error) for call in action.calls] == [("find", {"what": "x"}, None)]
    assert action.content == ""


BROKEN = {
    "openai-gpt-oss-120b": " to=functions.find<|channel|>commentary json<|message|>{what}<|call|>",
    "mistralai-Mistral-Nemo-Instruct-2407": '[TOOL_CALLS][{"name": "find", "arguments"</s>',
    "Qwen3-Coder": "<tool_call>\n<function=find>\n<parameter=what>\nx\n</function>\n</tool_call><|im_end|>",
    "GLM-4.6": "<tool_call>find\n<arg_key>what</arg_key>\n<arg_value>x\n</tool_call><|observation|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜tool▁call▁begin｜>find<｜tool▁sep｜>{<｜tool▁call▁end｜><｜end▁of▁sentence｜>",
    "bare_keys": '<|tool_call>call:find{what:<|"|>x}<tool_call|><turn|>',
}


@pytest.mark.parametrize("template", BROKEN)
def test_a_broken_call_is_kept_with_its_error(template: str) -> None:
    renderer, tokenizer = by_name(template)
    tokens = tokenizer.encode(BROKEN[template], add_special_tokens=False)
    (call,) = renderer.parse(tokens, "stop", tokens[-1]).calls
    assert call.error


def test_a_call_in_a_thought_is_no_call() -> None:
    renderer, tokenizer = by_name("ByteDance-Seed-OSS")
    call = "<seed:tool_call>\n<function=find>\n<parameter=what>x</parameter>\n</function>\n</seed:tool_call>"
    tokens = tokenizer.encode(f"<seed:think>maybe {call}<seed:eos>", add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert (action.calls, action.reasoning) == ((), f"maybe {call}")
    tokens = tokenizer.encode(f"<seed:think>maybe</seed:think>{call}<seed:eos>", add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert ([call.name for call in action.calls], action.reasoning) == (["find"], "maybe")


def test_a_string_argument_stays_a_string() -> None:
    renderer, _ = by_name("Qwen3-Coder")
    message = turn(1)
    message["tool_calls"][0]["function"]["arguments"] = {"what": "007", "many": [7]}
    tokens = renderer.encode(message)
    assert renderer.parse(tokens, "stop", tokens[-1]).calls[0].arguments == {"what": "007", "many": [7]}


def test_the_stop_that_was_sampled_may_be_the_next_role() -> None:
    renderer, tokenizer = by_name("GLM-4.6")
    tokens = renderer.encode(turn(1))
    assert renderer.decode(tokens[-1:]) == "<|observation|>"
    action = renderer.parse(tokens, "stop", tokens[-1])
    new = [{"role": "tool", "tool_call_id": action.calls[0].id, "content": "found"}]
    after = renderer.decode(renderer.bridge([], action, new).tokens)
    assert after == "\n<tool_response>\nfound\n</tool_response><|assistant|>"
    cut = renderer.parse(tokens[:-1], "stop", None)
    assert renderer.decode(renderer.bridge([], cut, new).tokens) == "<|observation|>" + after
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    other = renderer.parse([*tokens[:-1], user], "stop", user)
    assert renderer.decode(renderer.bridge([], other, new).tokens) == "<|observation|>" + after


def test_of_two_ends_the_sampled_one_stays() -> None:
    renderer, _ = by_name("openai-gpt-oss-120b")
    tokens = renderer.encode({"role": "assistant", "content": "Ulm"})
    assert renderer.decode(tokens) == "<|channel|>final<|message|>Ulm<|return|>"
    action = renderer.parse(tokens, "stop", tokens[-1])
    bridge = renderer.bridge([], action, [{"role": "user", "content": "thanks"}])
    assert renderer.decode(bridge.tokens) == "<|start|>user<|message|>thanks<|end|><|start|>assistant"


def test_results_are_numbered_over_the_conversation() -> None:
    renderer, _ = by_name("numbered_results")
    tokens = renderer.encode(turn(1))
    action = renderer.parse(tokens, "stop", tokens[-1])
    new = [{"role": "tool", "tool_call_id": action.calls[0].id, "content": "found"}]
    earlier = [
        {"role": "user", "content": "Go."},
        turn(1),
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        turn(1),
    ]
    assert '"tool_call_id": "0"' in renderer.decode(renderer.bridge(earlier[:2], action, new).tokens)
    assert '"tool_call_id": "1"' in renderer.decode(renderer.bridge(earlier, action, new).tokens)


def test_certified_once_for_a_template_and_tokenizer() -> None:
    first, _ = by_name("Qwen3-Coder")
    second, _ = by_name("Qwen3-Coder")
    assert isinstance(first.certificate, Certificate)
    assert first.certificate is second.certificate
