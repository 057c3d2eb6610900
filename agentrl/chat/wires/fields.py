"""The fields of a request's body for each API, and their treatment: obeyed, recorded or refused. docs/serve.md lists
the obeyed and the refused fields.

The names are from OpenAI's, Anthropic's and Google's packages, and from the servers vLLM and SGLang, which add fields
to the first three APIs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from agentrl.chat.wires.reading import refuse
from agentrl.types import JSON

_log = logging.getLogger("agentrl")

Treatment: TypeAlias = Literal["obeyed", "recorded", "refused"]
Table: TypeAlias = dict[str, "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """The treatment of a field of a request's body."""

    treatment: Treatment
    """obeyed: the field changes the answer as the API says. recorded: the field is in the session's log and does not
    change the answer. refused: status 400."""
    remedy: str = ""
    """The reason and the remedy, if the field is refused."""
    harmless: Sequence[JSON] = ()
    """Values of a refused field that leave the answer unchanged."""


def _all(treatment: Treatment, names: str, remedy: str = "", *harmless: JSON) -> dict[str, Field]:
    return {name: Field(treatment, remedy, harmless) for name in names.split()}


_DATA = "the tokens, log-probs and states stay in the trajectory; leave it out"
_DISTRIBUTION = "it changes which tokens may be sampled, so the trainer would assume another distribution; leave it out"
_WHOLE = "nothing is stored here; send the whole conversation"
_TEMPLATE = "the run's chat template writes the prompt; leave it out"

SERVERS: Table = {
    **_all("obeyed", "chat_template_kwargs continue_final_message stop stop_token_ids include_stop_str_in_output"),
    **_all("obeyed", "no_stop_trim include_reasoning structured_outputs regex ebnf"),
    **_all("obeyed", "guided_json guided_regex guided_choice guided_grammar"),
    **_all("recorded", "temperature top_p top_k min_p min_tokens seed logit_bias length_penalty repetition_penalty"),
    **_all("recorded", "frequency_penalty presence_penalty thinking_token_budget watermarking vllm_xargs"),
    **_all("recorded", "guided_decoding_backend guided_whitespace_pattern spaces_between_special_tokens"),
    **_all("recorded", "priority request_id rid session_id extra_key cache_salt user stream_interval stream_reasoning"),
    **_all("recorded", "kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room"),
    **_all("recorded", "routed_dp_rank disagg_prefill_dp_rank data_parallel_rank ngram_corpus_id"),
    **_all("recorded", "routed_experts_prompt_start routed_experts_start_len return_mm_kwargs truncation_side"),
    **_all("recorded", "return_tokens_as_token_ids return_cached_tokens_details media_io_kwargs mm_processor_kwargs"),
    **_all("recorded", "max_dynamic_patch min_dynamic_patch use_audio_in_video images_config"),
    **_all("refused", "logprobs top_logprobs prompt_logprobs logprob_token_ids", _DATA, False, 0, []),
    **_all("refused", "return_token_ids return_prompt_token_ids return_prompt_text return_meta_info", _DATA, False),
    **_all("refused", "return_hidden_states return_routed_experts return_token_offsets", _DATA, False),
    **_all("refused", "enable_response_messages", _DATA, False),
    **_all("refused", "use_beam_search best_of", "one answer is sampled for each of n; use n", False, 1),
    **_all("refused", "ignore_eos bad_words allowed_token_ids", _DISTRIBUTION, False, []),
    **_all("refused", "logits_processors custom_logit_processor custom_params", _DISTRIBUTION, []),
    **_all("refused", "repetition_detection stop_regex", "a reply ends at its stop strings; use stop"),
    **_all("refused", "structural_tag", "use response_format, structured_outputs, regex or ebnf"),
    **_all("refused", "skip_special_tokens", "the reply is read as text and calls; leave it out", True),
    **_all("refused", "separate_reasoning", "thoughts are sent as reasoning_content; leave it out", True),
    **_all("refused", "truncate_prompt_tokens", "a prompt is never cut; send a shorter conversation"),
    **_all("refused", "add_generation_prompt", "use continue_final_message to continue the last message", True),
    **_all("refused", "echo", "the reply holds the new text alone; put the last message before it", False),
    **_all("refused", "add_special_tokens chat_template", _TEMPLATE, False),
    **_all("refused", "documents", "put the documents into a message", []),
    **_all("refused", "input_ids", "send messages; for token ids use SGLang's /generate"),
    **_all("refused", "lora_path", "the run's own weights answer; leave it out"),
    **_all("refused", "session_params previous_input_messages previous_response", _WHOLE),
    **_all("refused", "task", "it is for one model's own encoder; ask in a message"),
}
"""Fields of vLLM and SGLang in the APIs of OpenAI and Anthropic."""

CHAT: Table = SERVERS | {
    **_all("obeyed", "messages model tools tool_choice parallel_tool_calls response_format n max_tokens"),
    **_all("obeyed", "max_completion_tokens stream stream_options reasoning_effort"),
    **_all("recorded", "verbosity metadata moderation prediction prompt_cache_key prompt_cache_options"),
    **_all("recorded", "prompt_cache_retention safety_identifier service_tier store web_search_options"),
    **_all(
        "refused",
        "functions function_call",
        "this is the API's old form; use tools and tool_choice",
        *(
            "auto",
            "none",
            [],
        ),
    ),
    **_all(
        "refused", "modalities", 'the model reads and writes text only; use ["text"], or leave it out', ["text"], []
    ),
    **_all("refused", "audio", "the model writes text only; leave it out"),
}

RESPONSES: Table = SERVERS | {
    **_all("obeyed", "input instructions model tools tool_choice parallel_tool_calls text max_output_tokens stream"),
    **_all("obeyed", "reasoning include previous_response_id conversation"),
    **_all("recorded", "metadata service_tier store truncation safety_identifier prompt_cache_key image moderation"),
    **_all("recorded", "prompt_cache_options prompt_cache_retention max_tool_calls access_programs stream_options"),
    **_all("recorded", "context_management background_options"),
    **_all("refused", "prompt", "nothing is stored here; send its text as instructions"),
    **_all("refused", "background", "nothing is stored here; leave it out, and wait for the answer", False),
}

MESSAGES: Table = SERVERS | {
    **_all("obeyed", "messages model system tools tool_choice max_tokens stop_sequences stream output_config"),
    **_all("obeyed", "output_format thinking"),
    **_all("recorded", "metadata service_tier cache_control context_management diagnostics inference_geo speed"),
    **_all("recorded", "fallbacks fallback_credit_token billing_policy betas user_profile_id workspace_id"),
    **_all("refused", "container mcp_servers", "this gateway runs no tools; leave it out", [], {}),
    **_all("refused", "thread compaction", f"{_WHOLE}, and ask for a summary in a message"),
}

GEMINI: Table = {
    **_all("obeyed", "contents systemInstruction tools toolConfig generationConfig model chat_template_kwargs"),
    **_all("obeyed", "stream array"),  # from the path
    **_all("recorded", "safetySettings labels serviceTier store modelArmorConfig"),
    **_all("refused", "cachedContent", f"{_WHOLE} as contents"),
    **_all("refused", "continuationToken", "to continue a reply, send it as the last content, of the role model"),
}

_CONFIG = "generationConfig."
GEMINI_CONFIG: Table = {
    **_all("obeyed", "candidateCount maxOutputTokens stopSequences responseMimeType responseSchema"),
    **_all("obeyed", "responseJsonSchema thinkingConfig"),
    **_all("recorded", "temperature topP topK seed presencePenalty frequencyPenalty mediaResolution routingConfig"),
    **_all("recorded", "modelSelectionConfig audioTimestamp enableAffectiveDialog enableEnhancedCivicAnswers"),
    **_all("recorded", "imageConfig"),
    **_all("refused", "responseLogprobs logprobs", _DATA, False, 0),
    **_all(
        "refused",
        "responseModalities",
        'the model writes text only; use ["TEXT"], or leave it out',
        *(
            ["TEXT"],
            ["text"],
            ["Text"],
            [],
        ),
    ),
    **_all(
        "refused",
        "speechConfig translationConfig audioTranscriptionConfig generationOutputConfig",
        *("the model writes text only; leave it out",),
    ),
    **_all("refused", "responseFormat", "use responseMimeType and responseJsonSchema"),
}
"""The fields of Google's `generationConfig`."""

APIS: Mapping[str, Table] = {
    "OpenAI chat": {name: field for name, field in CHAT.items() if name not in SERVERS or CHAT[name] != SERVERS[name]},
    "OpenAI responses": {n: field for n, field in RESPONSES.items() if n not in SERVERS or RESPONSES[n] != SERVERS[n]},
    "Anthropic messages": {n: field for n, field in MESSAGES.items() if n not in SERVERS or MESSAGES[n] != SERVERS[n]},
    "these three, with the fields of vLLM and SGLang": SERVERS,
    "Gemini": {name: field for name, field in GEMINI.items() if name not in ("stream", "array")},
    "Gemini, `generationConfig`": GEMINI_CONFIG,
}
"""API -> table of its fields, for the documentation."""


def recorded(body: Mapping[str, JSON], table: Table, within: str = "") -> dict[str, JSON]:
    """The fields of a body that are only recorded, including unknown fields. The first use of an unknown field logs a
    warning.

    Raises RefusedError for a refused field whose value would change the answer.
    """
    notes: dict[str, JSON] = {}
    for name, value in body.items():
        if value is None or (name == "add_generation_prompt" and body.get("continue_final_message") is True):
            continue
        field = table.get(name)
        if field is None:
            _warn_unknown(f"{within}{name}"[:80])
        if field is None or field.treatment == "recorded":
            notes[name] = value
        elif field.treatment == "refused" and not _is_in(value, field.harmless):
            raise refuse(f"{within}{name}: {field.remedy}")
    return notes


def _is_in(value: JSON, harmless: Sequence[JSON]) -> bool:
    """Whether `harmless` holds the value. An empty text counts as null."""
    return value == "" or any(type(value) is type(other) and value == other for other in harmless)


@cache
def _warn_unknown(name: str) -> None:
    _log.warning("a request has the field %r, which agentrl does not know: it is recorded, and changes nothing", name)


def markdown() -> str:
    """The table for docs/serve.md in Markdown: all fields that are not merely recorded."""
    return "\n".join(["| API | treatment | fields |", "|---|---|---|", *_rows()])


def _rows() -> Iterator[str]:
    for api, table in APIS.items():
        for treatment in ("obeyed", "refused"):
            names = sorted(f"`{name}`" for name, field in table.items() if field.treatment == treatment)
            yield f"| {api} | {treatment} | {', '.join(names)} |"
