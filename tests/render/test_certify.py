"""Certification: what is proved, what departs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from agentrl.errors import ConfigError, TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.cache import fingerprint
from tests.render.markers import GIVEN, template_files

MARKERS = {
    "Qwen-Qwen2.5-7B-Instruct": ("exact", ("<|im_start|>", "<|im_end|>")),
    "Qwen-Qwen3-0.6B": ("keeps-history", ("<|im_start|>", "<|im_end|>")),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("keeps-history", ("<|im_start|>", "<|im_end|>")),
    "meta-llama-Llama-3.1-8B-Instruct": ("exact", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "meta-llama-Llama-3.2-3B-Instruct": ("exact", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
}


def changed(template: str, old: str, new: str) -> str:
    assert old in template
    return template.replace(old, new)


def test_both_families_are_exact(chatml: Renderer, llama: Renderer) -> None:
    for renderer in (chatml, llama):
        assert renderer.certificate.level == "exact"
        assert renderer.certificate.departures == ()
        assert "an answer after a tool result" in renderer.certificate.proved
    assert chatml.certificate.capabilities["parallel_calls"]
    assert not llama.certificate.capabilities["parallel_calls"]
    assert not llama.certificate.capabilities["text_with_calls"]


def test_a_template_that_ignores_tools_says_so(plain: Renderer) -> None:
    certificate = plain.certificate
    assert certificate.level == "keeps-history"
    assert not certificate.capabilities["calls"]
    assert not certificate.capabilities["tools"]
    assert certificate.capabilities["tool_results"]
    assert any("<tool_call>" in departure for departure in certificate.departures)
    assert "a user message after an answer" in certificate.proved


def test_rewritten_history_is_a_departure(tokenizers: Any) -> None:
    template = changed(
        tokenizers.CHATML,
        "'<|im_start|>assistant\n' + m.content",
        "'<|im_start|>assistant\n' + (m.content if loop.last or loop.nextitem.role != 'user' else m.content + '!')",
    )
    renderer = load_renderer(tokenizers.chatml(template))
    certificate = renderer.certificate
    tokens = renderer.encode({"role": "assistant", "content": "Paris"})
    bridge = renderer.bridge([], renderer.parse(tokens, "stop", tokens[-1]), [{"role": "user", "content": "x"}])
    assert renderer.decode(bridge.tokens).startswith("\n<|im_start|>user\nx")
    assert (bridge.spans[0].kind, bridge.spans[0].stop) == ("close", 1)
    assert certificate.level == "keeps-history"
    (departure,) = (d for d in certificate.departures if d.startswith("a user message after an answer"))
    assert "degrees. 晴れ!" not in departure.partition(" where the full render has ")[0]
    assert "れ!<|im_end|>" in departure.partition(" where the full render has ")[2]


def test_a_close_that_depends_on_the_turn_is_refused_with_the_case(tokenizers: Any) -> None:
    template = changed(
        tokenizers.CHATML,
        "{{- '<|im_end|>\n' -}}\n{%- elif m.role == 'user'",
        "{{- '<|im_end|>\n' + ('~' if m.content | length > 12 else '') -}}\n{%- elif m.role == 'user'",
    )
    with pytest.raises(TemplateError, match=r"a user message after an answer: expected '.*~.*', bridged"):
        load_renderer(tokenizers.chatml(template))


def test_nothing_ends_a_turn(tokenizers: Any) -> None:
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with pytest.raises(TemplateError, match="does not close this turn"):
        load_renderer(tokenizers.chatml(template))


def test_an_assistant_that_is_not_shown(tokenizers: Any) -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(TemplateError, match="does not write the assistant's text"):
        load_renderer(tokenizers.chatml(template))


def test_calls_that_cannot_be_read_serve_without_tools_only(tokenizers: Any, tool: Any) -> None:
    template = changed(tokenizers.CHATML, "c.function.arguments | tojson", "c.function.arguments.values() | join('#')")
    renderer = load_renderer(tokenizers.chatml(template))
    assert not renderer.certificate.capabilities["calls"]
    assert any("cannot be read back" in departure for departure in renderer.certificate.departures)
    for bind in (lambda: renderer.bind([tool]), lambda: load_renderer(tokenizers.chatml(template), tools=[tool])):
        with pytest.raises(TemplateError, match="cannot be read back"):
            bind()


def test_what_only_calls_break_serves_without_tools(tokenizers: Any, tool: Any) -> None:
    template = changed(tokenizers.CHATML, "c.function.arguments | tojson", "[].append(c)")
    renderer = load_renderer(tokenizers.chatml(template))
    assert "a user message after an answer" in renderer.certificate.proved
    assert not any(renderer.certificate.capabilities[name] for name in ("calls", "tools", "tool_results"))
    assert any("without tools only" in departure for departure in renderer.certificate.departures)
    with pytest.raises(TemplateError, match="sandbox"):
        renderer.bind([tool])


HEADED = """\
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{- '<|im_start|>user\n' + m.content + '<|im_end|>' + (' ' if loop.last else '  ') -}}
{%- if loop.last -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
{%- else -%}
{{- ' <|im_start|>assistant\n' + m.content + '<|im_end|>' -}}
{%- endif -%}
{%- endfor -%}
"""
"""Opens the next turn unasked, and writes its header again before an answer: as xinference's deepseek-v3 does."""


def test_a_header_is_no_part_of_a_sampled_turn(tokenizers: Any) -> None:
    renderer = load_renderer(tokenizers.chatml(HEADED))
    assert renderer.decode(renderer.prompt("hi").tokens).endswith("<|im_end|> <|im_start|>assistant\n")
    assert renderer.decode(renderer.encode({"role": "assistant", "content": "Paris"})) == "Paris<|im_end|>"


def test_a_header_that_history_writes_in_other_words_is_refused(tokenizers: Any) -> None:
    template = changed(HEADED, "' <|im_start|>assistant", "' <|im_start|>the assistant")
    with pytest.raises(TemplateError, match=r"<\|im_start\|>' is in the prompt .*, and again in the turn"):
        load_renderer(tokenizers.chatml(template))


def test_a_tokenizer_without_a_template(tokenizers: Any) -> None:
    tokenizer = tokenizers.chatml()
    tokenizer.chat_template = None
    tokenizer.name_or_path = "models/base"
    with pytest.raises(TemplateError, match=r"models/base: .* no chat template; .* chat_template="):
        load_renderer(tokenizer)


def test_broken_jinja_and_broken_generation_config(tokenizers: Any, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="is not valid Jinja"):
        load_renderer(tokenizers.chatml("{% for m in %}"))
    (tmp_path / "generation_config.json").write_text("{")
    tokenizer = tokenizers.chatml()
    tokenizer.name_or_path = str(tmp_path)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_renderer(tokenizer)


def test_dropped_tool_results_are_refused_when_bridged(tokenizers: Any) -> None:
    template = changed(
        tokenizers.CHATML, "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}", "{{- '(hidden)' -}}"
    )
    renderer = load_renderer(tokenizers.chatml(template))
    assert not renderer.certificate.capabilities["tool_results"]
    tokens = renderer.encode({"role": "assistant", "content": "hm"})
    action = renderer.parse(tokens, "stop", tokens[-1])
    with pytest.raises(TemplateError, match="cannot carry tool results"):
        renderer.bridge([], action, [{"role": "tool", "content": "x"}])


def test_certified_once_per_template(tokenizers: Any) -> None:
    first, second = load_renderer(tokenizers.chatml()), load_renderer(tokenizers.chatml())
    assert first.certificate is second.certificate
    assert load_renderer(tokenizers.llama()).certificate is not first.certificate


def test_what_is_proved_is_the_tokenizer_as_it_is_now(tokenizers: Any) -> None:
    """A tokenizer may be given another end of sequence, or other tokens may become special, after its first proof."""
    tokenizer = tokenizers.chatml()
    before = load_renderer(tokenizer).stop_token_ids
    tokenizer.eos_token = "<|endoftext|>"
    after = load_renderer(tokenizer).stop_token_ids
    assert tokenizer.eos_token_id in after - before
    plain, special = (tokenizers.make(("<|im_start|>", "<|im_end|>"), eos="<|im_end|>") for _ in range(2))
    for made, flag in ((plain, False), (special, True)):
        made.chat_template = tokenizers.CHATML
        made.add_tokens([AddedToken("<tool_call>", special=flag)])
    assert fingerprint(plain) != fingerprint(special)


@pytest.mark.parametrize("name", MARKERS)
def test_real_templates(name: str, tokenizers: Any) -> None:
    path = next((path for path in template_files() if path.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the repository; {GIVEN} names no folder that has it")
    level, markers = MARKERS[name]
    source = path.read_text(encoding="utf-8")
    tags = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    tokenizer = tokenizers.make(("<|bos|>", *markers), tags, eos=markers[-1], bos="<|bos|>")
    renderer = load_renderer(tokenizer, chat_template=source)
    assert renderer.certificate.level == level
    assert ("a tool result after a call" in renderer.certificate.proved) == (name != "Qwen-Qwen3-0.6B")
    assert renderer.certificate.capabilities["tool_results"]


def test_real_qwen3(qwen3_tokenizer: Path, tool: Any) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen3_tokenizer)
    renderer = load_renderer(tokenizer, tools=[tool])
    assert renderer.certificate.level == "keeps-history"
    assert "a call after reasoning" in renderer.certificate.proved
    tokens = renderer.encode({"role": "assistant", "content": "Paris", "reasoning_content": "easy"})
    assert renderer.decode(tokens) == "<think>\neasy\n</think>\n\nParis<|im_end|>"
    action = renderer.parse(tokens, "stop", tokens[-1])
    assert (action.content, action.reasoning) == ("Paris", "easy")
    closed = renderer.bind([tool], enable_thinking=False)
    assert closed.decode(closed.prompt("hi").tokens).endswith("<think>\n\n</think>\n\n")
