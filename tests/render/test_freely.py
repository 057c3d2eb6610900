"""Turns as models write them where they depart from their templates, and what certification sees of that."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.render import Renderer, load_renderer
from agentrl.render.formats import named_calls, pairs
from agentrl.render.formats.arguments import literal
from agentrl.render.formats.json_calls import JsonCalls
from agentrl.render.prove import proof
from agentrl.render.read.json_value import ParseFailure
from agentrl.render.read.lexer import loose
from agentrl.render.template import Template
from agentrl.types import Action, Raw
from tests.render.conftest import CHATML_MARKERS, PLAIN_CHATML, llama_tokenizer, make_tokenizer
from tests.render.opened_calls import opened
from tests.render.survey_tool import TOOL

NOW = {"type": "function", "function": {"name": "now", "description": "Now.", "parameters": {"type": "object"}}}
FOUND = [("find", {"what": "x"}, None)]
MISTRAL, GPT = "Mistral-Small-3.2-24B-Instruct-2506", "openai-gpt-oss-120b"
SEP, CALL, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"


def read(name: str, text: str) -> Action:
    renderer, tokenizer = opened(name)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return renderer.bind([TOOL, NOW]).parse(tokens, "stop", tokens[-1])


def calls_of(action: Action) -> list[tuple[str, Any, str | None]]:
    return [(call.name, call.arguments, call.error) for call in action.calls]


READ = {
    "Mistral, no id": (MISTRAL, '[TOOL_CALLS]find[ARGS]{"what": "x"}</s>', FOUND),
    "Mistral, an empty id": (MISTRAL, '[TOOL_CALLS]find[CALL_ID][ARGS]{"what": "x"}</s>', FOUND),
    "Mistral, two without ids": (
        MISTRAL,
        '[TOOL_CALLS]find[ARGS]{"what": "x"}[TOOL_CALLS]now[ARGS]{}</s>',
        [*FOUND, ("now", {}, None)],
    ),
    "Mistral, no marker": (MISTRAL, '[TOOL_CALLS]find{"what": "x"}</s>', FOUND),
    "Mistral, the older spelling": (MISTRAL, '[TOOL_CALLS] [{"name": "find", "arguments": {"what": "x"}}]</s>', FOUND),
    "Nemo, the newer spelling": (
        "mistralai-Mistral-Nemo-Instruct-2407",
        '[TOOL_CALLS]find[ARGS]{"what": "x"}</s>',
        FOUND,
    ),
    "Qwen, calls in an array": (
        "Qwen-Qwen2.5-7B-Instruct",
        '<tool_call>\n[{"name": "find", "arguments": {"what": "x"}}, {"name": "now"}]\n</tool_call><|im_end|>',
        [*FOUND, ("now", {}, None)],
    ),
    "Qwen, the other word": (
        "Qwen-Qwen2.5-7B-Instruct",
        '<tool_call>\n{"type": "function", "name": "find", "parameters": {"what": "x"}}\n</tool_call><|im_end|>',
        FOUND,
    ),
    "gpt-oss, no namespace": (
        GPT, '<|channel|>commentary to=find<|constrain|>json<|message|>{"what": "x"}<|call|>', FOUND,
    ),
    "gpt-oss, no arguments": (GPT, "<|channel|>commentary to=functions.now<|message|><|call|>", [("now", {}, None)]),
    "gpt-oss, code": (GPT, '<|channel|>commentary to=functions.find code<|message|>{"what": "x"}<|call|>', FOUND),
    "LFM2, a comma at the end": (
        "pythonic_tagged",
        '<|tool_call_start|>[find(what="x", ), now()]<|tool_call_end|><|im_end|>',
        [*FOUND, ("now", {}, None)],
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("case", READ)
def test_what_models_leave_out_or_add(case: str) -> None:
    name, text, wanted = READ[case]
    action = read(name, text)
    assert (calls_of(action), action.content) == (wanted, "")


MISNAMED = {
    MISTRAL: '[TOOL_CALLS]find web[ARGS]{"what": "x"}</s>',
    GPT: '<|channel|>commentary to=functions.find web<|channel|>commentary json<|message|>{"what": "x"}<|call|>',
    "deepseek-ai-DeepSeek-V3.1": f'{CALL}find web{SEP}{{"what": "x"}}{END}<｜end▁of▁sentence｜>',
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": f'{CALL}function{SEP}find web\n```json\n{{"what": "x"}}\n```{END}'
    "<｜end▁of▁sentence｜>",
    "Qwen3-Coder": "<tool_call>\n<function=find web>\n<parameter=what>\nx\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>",
    "GLM-4.6": "<tool_call>find web\n<arg_key>what</arg_key>\n<arg_value>x</arg_value>\n</tool_call><|observation|>",
    "bare_keys": '<|tool_call>call:find web{what:<|"|>x<|"|>}<tool_call|><turn|>',
}


@pytest.mark.parametrize("name", MISNAMED)
def test_a_name_of_two_words_is_no_tool_of_one(name: str) -> None:
    action = read(name, MISNAMED[name])
    assert [bool(call.error) for call in action.calls] == [True]
    assert action.content == ""


HEAD, JSON = "<|channel|>commentary to=", '<|constrain|>json<|message|>{"what": "x"}'
BROKEN = {
    "a namespace for a name": (GPT, f"{HEAD}functions. {JSON}<|call|>"),
    "a namespace without its dot": (GPT, f"{HEAD}functions {JSON}<|call|>"),
    "a type for a name": (GPT, f'{HEAD}functions. json<|message|>{{"what": "x"}}<|call|>'),
    "dots for a name": (GPT, f"{HEAD}functions... {JSON}<|call|>"),
    "a namespace in an id": (
        "name_in_id",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{"what": "x"}'
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
    ),
    "a fence for a name": (
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        f'{CALL}function{SEP}\n```json\n{{"what": "x"}}\n```{END}<｜end▁of▁sentence｜>',
    ),
    "two objects": (GPT, f'{HEAD}functions.find {JSON}{{"more": 1}}<|call|>'),
    "words behind an object": (GPT, f"{HEAD}functions.find {JSON}\nThat was it.<|call|>"),
    "two objects, no marker behind": (MISTRAL, '[TOOL_CALLS]find[ARGS]{"what": "x"} {"more": 1}</s>'),
    "commas alone": ("pythonic_tagged", "<|tool_call_start|>[find(,)]<|tool_call_end|><|im_end|>"),
    "a value that nothing ends": (
        "GLM-4.6",
        "<tool_call>find\n<arg_key>what</arg_key>\n<arg_value>x\n<arg_key>where</arg_key>\n<arg_value>{}</arg_value>\n"
        "</tool_call><|observation|>",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_whole_call_runs_nothing(case: str) -> None:
    action = read(*BROKEN[case])
    assert [bool(call.error) for call in action.calls] == [True]
    assert action.content == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"parameters": {"query": "x"}}',
        '{"type": "function", "arguments": {"query": "x"}}',
        '{"name": null, "parameters": {"query": "x"}}',
    ],
)
def test_a_bare_call_without_its_name_is_malformed(text: str) -> None:
    tokenizer = llama_tokenizer()
    renderer = load_renderer(tokenizer, tools=[TOOL])
    tokens = tokenizer.encode(f"{text}<|eot_id|>", add_special_tokens=False)
    (call,) = renderer.parse(tokens, "stop", tokens[-1]).calls
    assert call.error == 'the call has no "name"'


@pytest.mark.parametrize(
    "text", ['{"parameters": {}}', '{"parameters": {"a": 1}, "model": "x"}', '{"parameters": [1]}']
)
def test_an_answer_with_parameters_is_an_answer(text: str) -> None:
    tokenizer = llama_tokenizer()
    renderer = load_renderer(tokenizer, tools=[TOOL])
    tokens = tokenizer.encode(f"{text}<|eot_id|>", add_special_tokens=False)
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert (action.calls, action.content) == ((), text)


PREAMBLE = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
TO = '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"what": "x"}<|call|>'
FINAL = "<|channel|>final<|message|>Ulm.<|return|>"
MESSAGES = {
    "a preamble and a call": (PREAMBLE + TO, ("I will look.", None, FOUND)),
    "a thought, a preamble and a call": (THOUGHT + PREAMBLE + TO, ("I will look.", "hm", FOUND)),
    "a preamble between thoughts": (THOUGHT + PREAMBLE + THOUGHT + FINAL, ("I will look.\nUlm.", "hm\nhm", [])),
    "an answer that another token ends": ("<|channel|>final<|message|>Ulm.<|end|>", ("Ulm.", None, [])),
    "an answer with a type": ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", ("{}", None, [])),
    "an answer with a word for its type": ("<|channel|>final json<|message|>{}<|return|>", ("{}", None, [])),
    "a thought with a type": (THOUGHT.replace("analysis", "analysis text") + FINAL, ("Ulm.", "hm", [])),
    "a channel that another follows": ("<|channel|>analysis" + FINAL, ("<|channel|>analysis\nUlm.", None, [])),
    "an answer that both end": ("<|channel|>final<|message|>Ulm.<|end|><|return|>", ("Ulm.", None, [])),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_of_gpt_oss(case: str) -> None:
    text, wanted = MESSAGES[case]
    action = read(GPT, text)
    assert (action.content, action.reasoning, calls_of(action)) == wanted


MENTIONS = {
    "Wrap it in <think> and go on.": ("Wrap it in <think> and go on.", None),
    "Use <think> and </think>.": ("Use <think> and </think>.", None),
    "<think>\nhm\n</think>\n\nThe <think> tag.": ("The <think> tag.", "hm"),
    "So:\n<think>\nit goes on": ("So:\n<think>\nit goes on", None),
    "So:\n<think>\nhm\n</think>\nYes.": ("So:\nYes.", "hm"),
    "<think>\nhm": ("", "hm"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("text", MENTIONS)
def test_a_mention_of_a_marker_opens_no_thought(text: str) -> None:
    action = read("Qwen-Qwen3-0.6B", f"{text}<|im_end|>")
    assert (action.content, action.reasoning) == MENTIONS[text]


@pytest.mark.parametrize(
    ("text", "open_"), [("In <think> it is", False), ("<think>hm", True), ("<think>a</think>b", False)]
)
def test_raw_text_behind_a_mention_is_in_no_thought(text: str, open_: bool) -> None:
    renderer, tokenizer = opened("Qwen-Qwen3-0.6B")
    action = renderer.parse(tokenizer.encode(text, add_special_tokens=False), "length")
    assert renderer.text(Raw(" more"), action).thinking == open_


LFM = ("<|tool_call_start|>", "<|tool_call_end|>")
SILENT = "{%- if tools -%}{{- 'List of tools: ' + tools | tojson + '\n' -}}{%- endif -%}" + PLAIN_CHATML
CONVENTIONS = {
    "calls": ('<|tool_call_start|>[find(what="x"), now()]<|tool_call_end|>', [*FOUND, ("now", {}, None)]),
    "a quote in a string": (
        "<|tool_call_start|>[find(what='it's')]<|tool_call_end|>", [("find", {"what": "it's"}, None)],
    ),
    "lines in a string": (
        "<|tool_call_start|>[find(what='a\nb')]<|tool_call_end|>", [("find", {"what": "a\nb"}, None)],
    ),
    "JSON's words": (
        "<|tool_call_start|>[find(many=['null', null, true])]<|tool_call_end|>",
        [("find", {"many": ["null", None, True]}, None)],
    ),
    "a padded number": ("<|tool_call_start|>[find(what=007)]<|tool_call_end|>", [("find", {"what": "007"}, None)]),
    "objects": ('<|tool_call_start|>[{"name": "find", "arguments": {"what": "x"}}]<|tool_call_end|>', FOUND),
    "tags": ('<tool_call>\n{"name": "find", "arguments": {"what": "x"}}\n</tool_call>', FOUND),
    "Granite": ('<|tool_call|>[{"arguments": {"what": "x"}, "name": "find"}]', FOUND),
}  # fmt: skip


@pytest.mark.parametrize("known", [LFM, ()], ids=["tokens", "unknown"])
@pytest.mark.parametrize("case", CONVENTIONS)
def test_calls_of_models_whose_templates_write_none(case: str, known: tuple[str, ...]) -> None:
    text, wanted = CONVENTIONS[case]
    tokenizer = make_tokenizer((*CHATML_MARKERS, *known), eos="<|im_end|>", template=SILENT)
    tokens = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
    action = load_renderer(tokenizer, tools=[TOOL, NOW]).parse(tokens, "stop", tokens[-1])
    assert (calls_of(action), action.content) == (wanted, "")


@pytest.mark.parametrize(("known", "mark"), [(LFM, "<|tool_call_start|>["), ((), "<tool_call>")])
def test_they_are_written_as_the_vocabulary_shows(known: tuple[str, ...], mark: str) -> None:
    tokenizer = make_tokenizer((*CHATML_MARKERS, *known), eos="<|im_end|>", template=SILENT)
    renderer = load_renderer(tokenizer, tools=[TOOL, NOW])
    given = {"what": 'a "b"\n', "many": ["'", None, True, 1.5], "where": {"at": "ü"}}
    written = [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": given}}]
    tokens = renderer.encode({"role": "assistant", "content": "", "tool_calls": written})
    assert renderer.decode(tokens).startswith(mark)
    assert calls_of(renderer.parse(tokens, "stop", tokens[-1])) == [("find", given, None)]
    assert any(mark in departure for departure in renderer.certificate.departures)


def proved(name: str) -> proof.Proof:
    """The certificate, not from the cache."""
    _, tokenizer = opened(name)
    return proof.prove(Template.of(tokenizer, None, [TOOL], {}))


def json_first(text: str, schema: Any, null: str = "") -> Any:
    """How values without quotes were once read."""
    value = literal(text)
    return text if schema.kinds == {"string"} or isinstance(value, ParseFailure) else value


def test_certification_sees_unions_read_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not proved("Qwen3-Coder").refuses_tools
    monkeypatch.setattr(pairs, "by_schema", json_first)
    assert "cannot be read back: the calls" in proved("Qwen3-Coder").refuses_tools


@pytest.mark.thorough
def test_certification_sees_an_argument_that_swallows_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Qwen3-Coder", "GLM-4.6", "cdata_pairs"):
        assert not proved(name).refuses_tools
    monkeypatch.setattr(pairs.AsPairs, "_swallowed", lambda *_: None)
    for name in ("Qwen3-Coder", "GLM-4.6"):
        assert "with an argument that is not closed" in proved(name).refuses_tools


def test_certification_sees_a_type_key_that_hides_a_call(monkeypatch: pytest.MonkeyPatch, llama: Renderer) -> None:
    assert not any("as the template writes it" in departure for departure in llama.certificate.departures)
    monkeypatch.setattr(JsonCalls, "_is_call", lambda self, text, at: text[at:].startswith('{"name"'))
    found = proof.prove(Template.of(llama_tokenizer(), None, [TOOL], {})).certificate
    assert any('with a "type" key first' in departure for departure in found.departures)


@pytest.mark.thorough
def test_certification_sees_a_call_that_needs_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("as the template writes it" in departure for departure in proved(MISTRAL).certificate.departures)
    monkeypatch.setattr(named_calls, "_or_without", lambda marker, captured, begins=False: loose(marker, captured))
    assert any("without an id" in departure for departure in proved(MISTRAL).certificate.departures)
