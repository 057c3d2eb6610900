"""Every field of the APIs is obeyed, recorded or refused, and the documentation says which."""

from __future__ import annotations

import logging
import typing
from dataclasses import replace
from pathlib import Path

import anthropic.types.beta.message_create_params as anthropic_beta
import anthropic.types.message_create_params as anthropic_messages
import openai.types.chat.completion_create_params as openai_chat
import openai.types.responses.response_create_params as openai_responses
import pytest

from agentrl.chat.request import ChatRequest, RefusedError
from agentrl.chat.wires import fields
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.gemini import Gemini
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses

SERVE = Path(__file__).parents[3] / "docs/serve.md"
ASK = [{"role": "user", "content": "Go."}]
LOOK = {"type": "object", "properties": {"where": {"type": "string"}}}
WIRES = {
    "chat": (Chat(), {"messages": ASK}, fields.CHAT),
    "responses": (Responses(), {"input": "Go."}, fields.RESPONSES),
    "messages": (Messages(), {"messages": ASK}, fields.MESSAGES),
    "gemini": (Gemini(), {"contents": [{"parts": [{"text": "Go."}]}]}, fields.GEMINI),
}

# vllm-project/vllm 002032ee (chat, the fields that OpenAI has not), and the guided_ fields of vLLM before 0.12
VLLM = """
thinking_token_budget include_reasoning use_beam_search top_k min_p repetition_penalty watermarking length_penalty
stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
add_generation_prompt continue_final_message add_special_tokens documents chat_template chat_template_kwargs
media_io_kwargs mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids routed_experts_prompt_start return_token_offsets return_prompt_text return_mm_kwargs cache_salt
kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval guided_json guided_regex
guided_choice guided_grammar structural_tag guided_decoding_backend guided_whitespace_pattern logits_processors
best_of enable_response_messages previous_input_messages previous_response
"""
# sgl-project/sglang 004c82e0
SGLANG = """
return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details
return_prompt_token_ids return_token_ids return_meta_info task top_k min_p min_tokens regex ebnf repetition_penalty
stop_token_ids stop_regex no_stop_trim ignore_eos continue_final_message skip_special_tokens lora_path session_id
session_params separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch
use_audio_in_video images_config custom_logit_processor custom_params input_ids rid extra_key cache_salt
ngram_corpus_id priority bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank
data_parallel_rank request_id
"""
# google-genai 3.6.1: what its GenerateContentConfig becomes in a body
GEMINI = """
contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent labels serviceTier store
modelArmorConfig continuationToken
"""
GEMINI_CONFIG = """
audioTimestamp audioTranscriptionConfig candidateCount enableAffectiveDialog enableEnhancedCivicAnswers
frequencyPenalty logprobs maxOutputTokens mediaResolution modelSelectionConfig presencePenalty responseFormat
responseJsonSchema responseLogprobs responseMimeType responseModalities responseSchema routingConfig seed speechConfig
stopSequences temperature thinkingConfig topK topP translationConfig imageConfig generationOutputConfig
"""


def keys(module, name):
    """The fields of a request in a vendor's package."""
    bases = [
        getattr(module, f"{name}Base"),
        getattr(module, f"{name}NonStreaming"),
        getattr(module, f"{name}Streaming"),
    ]
    return {key for kind in bases for key in typing.get_type_hints(kind)}


def read(wire, **body) -> ChatRequest:
    reader, least, _ = WIRES[wire]
    return reader.read({**least, **body}, {}, "digest").request


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (fields.CHAT, keys(openai_chat, "CompletionCreateParams")),
        (fields.RESPONSES, keys(openai_responses, "ResponseCreateParams")),
        (fields.MESSAGES, keys(anthropic_messages, "MessageCreateParams")),
        (fields.MESSAGES, keys(anthropic_beta, "MessageCreateParams")),
        (fields.MESSAGES, {"temperature", "top_p", "top_k"}),
        *((table, f"{VLLM} {SGLANG}".split()) for table in (fields.CHAT, fields.RESPONSES, fields.MESSAGES)),
        (fields.GEMINI, GEMINI.split()),
        (fields.GEMINI_CONFIG, GEMINI_CONFIG.split()),
    ],
)
def test_every_field_of_the_packages_is_in_the_table(table, names):
    assert sorted(set(names) - set(table)) == []


def cases(treatment):
    tables = {**{wire: table for wire, (_, _, table) in WIRES.items()}, "config": fields.GEMINI_CONFIG}
    return [(wire, name) for wire, table in tables.items() for name in table if table[name].treatment == treatment]


def given(wire, name, value):
    return read("gemini", generationConfig={name: value}) if wire == "config" else read(wire, **{name: value})


STRANGE = {"strange": 1}
"""A value that no field takes for harmless."""


@pytest.mark.parametrize(("wire", "name"), cases("refused"))
def test_a_refused_field_gets_400_with_its_name_unless_its_value_changes_nothing(wire, name):
    with pytest.raises(RefusedError, match=rf"^(generationConfig\.)?{name}: .*[a-z]"):
        given(wire, name, STRANGE)
    field = (fields.GEMINI_CONFIG if wire == "config" else WIRES[wire][2])[name]
    plain = replace(given(wire, name, None), response_id="")
    for value in field.harmless:
        assert replace(given(wire, name, value), response_id="") == plain


@pytest.mark.parametrize(("wire", "name"), cases("recorded"))
def test_a_recorded_field_is_in_the_log_and_changes_nothing(wire, name):
    request, plain = given(wire, name, STRANGE), given(wire, name, None)
    assert list(request.recorded.values()) == [STRANGE]
    changed = {part for part in request.__slots__ if getattr(request, part) != getattr(plain, part)}
    assert changed - {"response_id"} == {"recorded"}


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": LOOK}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": LOOK}}
SERVERS = {
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "stop": "END",
    "stop_token_ids": [7],
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "include_reasoning": False,
    "structured_outputs": {"regex": "[0-9]+"},
    "regex": "[0-9]+",
    "ebnf": 'root ::= "a"',
    "guided_json": LOOK,
    "guided_regex": "[0-9]+",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'root ::= "a"',
}
OBEYED = {
    "chat": {
        **SERVERS,
        "messages": [{"role": "user", "content": "No."}],
        "model": "m",
        "n": 2,
        "max_tokens": 5,
        "stream": True,
        "tools": [FUNCTION],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "response_format": FORMAT,
        "max_completion_tokens": 5,
        "reasoning_effort": "none",
        "stream_options": {"include_usage": True},
    },
    "responses": {
        **SERVERS,
        "input": "No.",
        "instructions": "Be kind.",
        "model": "m",
        "max_output_tokens": 5,
        "stream": True,
        "tools": [{"type": "function", "name": "look", "parameters": LOOK}],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "none"},
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
    },
    "messages": {
        **SERVERS,
        "messages": [{"role": "user", "content": "No."}],
        "system": "Be kind.",
        "model": "m",
        "max_tokens": 5,
        "tools": [{"name": "look", "input_schema": LOOK}],
        "tool_choice": {"type": "none"},
        "stream": True,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low"},
        "output_format": {"type": "json_object"},
        "thinking": {"type": "disabled"},
    },
    "gemini": {
        "contents": [{"parts": [{"text": "No."}]}],
        "systemInstruction": "Be kind.",
        "model": "m",
        "stream": True,
        "tools": [{"functionDeclarations": [{"name": "look"}]}],
        "array": True,
        "toolConfig": {"functionCallingConfig": {"mode": "NONE"}},
        "generationConfig": {"maxOutputTokens": 5},
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "config": {
        "candidateCount": 2,
        "maxOutputTokens": 5,
        "stopSequences": ["END"],
        "responseMimeType": "application/json",
        "responseSchema": LOOK,
        "responseJsonSchema": LOOK,
        "thinkingConfig": {"thinkingBudget": 0},
    },
}
BESIDE = {
    "continue_final_message": {"messages": [*ASK, {"role": "assistant", "content": "It is"}]},
    "responseSchema": {"responseMimeType": "application/json"},
    "responseJsonSchema": {"responseMimeType": "application/json"},
    "tool_choice": {"tools": OBEYED["chat"]["tools"]},
    "toolConfig": {"tools": OBEYED["gemini"]["tools"]},
}
"""Fields without which another one has no meaning."""
ELSEWHERE = {("chat", "stream_options"), ("responses", "include"), ("gemini", "array")}
"""The form of the answer changes, not the request: other tests read the answers."""


@pytest.mark.parametrize(("wire", "name"), cases("obeyed"))
def test_an_obeyed_field_changes_the_request(wire, name):
    beside = dict(BESIDE.get(name, {}))
    if name == "continue_final_message":
        if wire == "messages":  # where the assistant's last message is continued without a field
            with pytest.raises(RefusedError, match="continue_final_message: the last message must be the assistant's"):
                read(wire, continue_final_message=True)
            return
        beside = {"input": beside["messages"]} if wire == "responses" else beside
    elif name == "tool_choice":
        beside["tools"] = OBEYED[wire]["tools"]
    value = OBEYED[wire][name]
    if wire == "config":
        request, plain = (
            read("gemini", generationConfig={**beside, name: value}),
            read("gemini", generationConfig=beside),
        )
    else:
        request, plain = read(wire, **{**beside, name: value}), read(wire, **beside)
    request, plain = replace(request, response_id=""), replace(plain, response_id="")
    assert (request == plain) is ((wire, name) in ELSEWHERE)
    assert name not in request.recorded


def test_an_unknown_field_is_recorded_and_warned_of_once(caplog):
    fields._warn_unknown.cache_clear()
    with caplog.at_level(logging.WARNING):
        requests = [read("chat", fooBar=1) for _ in range(2)] + [read("gemini", generationConfig={"foo_bar": 1})]
    assert [request.recorded for request in requests] == [{"fooBar": 1}, {"fooBar": 1}, {"fooBar": 1}]
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "a request has the field 'fooBar'",
        "a request has the field 'generationConfig.fooBar'",
    ]


def test_the_documentation_has_the_table():
    text = SERVE.read_text()
    assert fields.markdown() in text, f"docs/serve.md needs this table:\n{fields.markdown()}"


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"guided_json": "{"}, "guided_json is not JSON"),
        ({"guided_choice": []}, "guided_choice is empty; list the answers"),
        ({"guided_regex": 7}, "guided_regex must be a string"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            r"structured_outputs\.structural_tag is not served; use json",
        ),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs must be an object"),
        ({"continue_final_message": True}, "continue_final_message: the last message must be the assistant's"),
        ({"add_generation_prompt": False}, "add_generation_prompt: use continue_final_message"),
    ],
)
def test_a_field_of_the_servers_with_a_wrong_value_is_named(wire, body, words):
    with pytest.raises(RefusedError, match=words):
        read(wire, **body)


def test_without_a_prompt_for_the_answer_the_last_message_goes_on():
    body = {"messages": [*ASK, {"role": "assistant", "content": "It"}], "continue_final_message": True}
    assert read("chat", **body, add_generation_prompt=False).continued


LOOKS = [{"type": "function", "function": {"name": name, "parameters": LOOK}} for name in ("look", "find")]
ALLOWED = [{"type": "function", "function": {"name": "find"}}]


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            "chat",
            {
                "tools": LOOKS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ALLOWED}},
            },
        ),
        (
            "responses",
            {
                "tools": [{"type": "function", **tool["function"]} for tool in LOOKS],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "find"}],
                },
            },
        ),
        (
            "gemini",
            {
                "tools": [{"functionDeclarations": [{"name": "look"}, {"name": "find"}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["find"]}},
            },
        ),
    ],
)
def test_tools_that_are_not_allowed_are_not_shown(wire, body):
    request = read(wire, **body)
    assert [tool["function"]["name"] for tool in request.tools] == ["find"]
    assert request.forced is None


def test_an_allowed_tool_must_be_there():
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "x"}}]}}
    with pytest.raises(RefusedError, match="tool_choice: no tool has the name 'x'"):
        read("chat", tools=LOOKS, tool_choice=choice)
