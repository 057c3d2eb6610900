"""A small byte-level BPE tokenizer with a template's own markers, and templates in the style of two families."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.render import Renderer, load_renderer
from agentrl.render.memo import Memo, Watch
from agentrl.render.template import Template
from tests.render.markers import GIVEN, data_folder
from tests.render.memo import primed_tail

TEXT = [
    "The weather in Paris is mild: 18 degrees, light wind from the west.",
    '{"name": "lookup", "arguments": {"query": "capital of France", "days": 3}}',
    "You may call one or more functions. Answer the question, then stop.\n\nassistant\nuser\nsystem\ntool\n",
    "<tool_call>\n</tool_call>\n<tool_response>\n</tool_response>\n<think>\n\n</think>\n\n",
]

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How the tokenizers of both families cut text into words: a run of newlines is one word."""

CHATML_MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_MARKERS = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|python_tag|>",
)  # fmt: skip


@functools.cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    return tokenizer.to_str()


def make_tokenizer(
    special: Sequence[str], added: Sequence[str] = (), *, eos: str, bos: str | None = None, template: str | None = None
) -> Any:
    """`special` tokens are control tokens; `added` ones are single tokens that are not (as Qwen's `<tool_call>`)."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_trained()), eos_token=eos, bos_token=bos)
    tokenizer.add_tokens(list(special), special_tokens=True)
    if added:
        tokenizer.add_tokens(list(added))
    tokenizer.chat_template = template
    return tokenizer


def chatml_tokenizer(*added: str, template: str | None = None) -> Any:
    return make_tokenizer(CHATML_MARKERS, added, eos="<|im_end|>", template=template or CHATML_TOOLS)


def sentencepiece_tokenizer(*, before: bool = True) -> Any:
    """As Llama 2 and Mistral have it: spaces are written "▁", and one is put before any text."""
    made = Tokenizer(models.BPE(byte_fallback=True))
    replaced = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if before else replaced
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=["▁", *map(chr, range(33, 127))], show_progress=False
    )
    made.train_from_iterator([text.replace(" ", "▁") for text in TEXT * 4], trainer)
    parts = json.loads(made.to_str())
    for byte in range(256):
        parts["model"]["vocab"][f"<0x{byte:02X}>"] = len(parts["model"]["vocab"])
    made = Tokenizer.from_str(json.dumps(parts))
    strip = [decoders.Strip(" ", 1, 0)] if before else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    tokenizer.add_tokens(list(CHATML_MARKERS), special_tokens=True)
    tokenizer.chat_template = CHATML_TOOLS
    return tokenizer


def llama_tokenizer(template: str | None = None) -> Any:
    """Its template writes the bos, and the tokenizer adds one to any text unless told not to."""
    tokenizer = make_tokenizer(LLAMA_MARKERS, eos="<|eot_id|>", bos="<|begin_of_text|>", template=template or LLAMA)
    bos = ("<|begin_of_text|>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[bos]
    )
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id
    return tokenizer


PLAIN_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML_TOOLS = """\
{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\n' -}}{%- endif -%}
{%- for t in tools -%}{{- t | tojson + '\n' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' + m.content -}}
{%- for c in m.tool_calls or [] -%}
{%- if m.content or not loop.first -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif m.role == 'user' or not loop.first -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if thinking_open is defined -%}{{- '<think>\n' -}}{%- endif -%}
{%- endif -%}
"""

LLAMA = """\
{{- bos_token -}}
{%- macro head(role) -%}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' -}}{%- endmacro -%}
{%- if tools -%}
{{- head('system') -}}{%- for t in tools -%}{{- t | tojson(indent=2) + '\n' -}}{%- endfor -%}{{- '<|eot_id|>' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if 'tool_calls' in m -%}
{%- if m.tool_calls | length != 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}
{%- set f = m.tool_calls[0].function -%}
{{- head('assistant') + '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}<|eot_id|>' -}}
{%- elif m.role == 'tool' -%}
{{- head('ipython') + m.content | tojson + '<|eot_id|>' -}}
{%- else -%}
{{- head(m.role) + m.content | trim + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- head('assistant') -}}{%- endif -%}
"""


LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@pytest.fixture(autouse=True)
def primed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every memo has learned the shape of a bridge from other strings, before it makes the bridge of a test. Every
    bridge is compared with the whole conversation."""
    monkeypatch.setattr(Memo, "tail", primed_tail)
    monkeypatch.setattr(Watch, "is_due", lambda *_: True)
    monkeypatch.setattr(Watch, "differs", _differs)


def _differs(self: Watch, template: Template, bridged: str, written: str) -> None:
    pytest.fail(f"a bridge differs from the render of the whole conversation: {bridged!r} is not {written!r}")


@pytest.fixture(scope="session")
def tool() -> dict[str, Any]:
    return LOOKUP


@pytest.fixture(scope="session")
def tokenizers() -> Any:
    """Makers of small tokenizers, by family, and the templates."""
    return SimpleNamespace(
        make=make_tokenizer,
        chatml=lambda template=CHATML_TOOLS: chatml_tokenizer(*TAGS, template=template),
        untagged=lambda template=CHATML_TOOLS: chatml_tokenizer(template=template),
        plain=lambda: chatml_tokenizer(template=PLAIN_CHATML),
        llama=llama_tokenizer,
        CHATML=CHATML_TOOLS,
        LLAMA=LLAMA,
    )


@pytest.fixture(scope="session")
def chatml(tokenizers: Any) -> Renderer:
    return load_renderer(tokenizers.chatml(), tools=[LOOKUP])


@pytest.fixture(scope="session")
def llama(tokenizers: Any) -> Renderer:
    return load_renderer(tokenizers.llama(), tools=[LOOKUP])


@pytest.fixture(scope="session")
def plain(tokenizers: Any) -> Renderer:
    return load_renderer(tokenizers.plain(), tools=[LOOKUP])


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    """The folder of Qwen 3's own tokenizer."""
    given = data_folder()
    if given is None or not (given / "tokenizers" / "qwen3").is_dir():
        pytest.skip(f"{GIVEN} names no folder with tokenizers/qwen3")
    return given / "tokenizers" / "qwen3"
