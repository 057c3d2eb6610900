"""Two sound templates, changes that no exact continuation survives, and changes that harm nothing."""

from __future__ import annotations

from dataclasses import dataclass

CHATML = """\
{%- if tools -%}{{- '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

LLAMA = """\
{%- macro head(role) -%}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' -}}{%- endmacro -%}
{{- bos_token -}}
{%- if tools -%}
{{- head('system') -}}{%- for t in tools -%}{{- t | tojson(indent=2) + '\n' -}}{%- endfor -%}{{- '<|eot_id|>' -}}
{%- endif -%}
{%- for m in messages -%}
{{- head('ipython' if m.role == 'tool' else m.role) -}}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}
{%- set f = m.tool_calls[0].function -%}
{{- '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}' -}}
{%- else -%}
{{- m.content | trim -}}
{%- endif -%}
{{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- head('assistant') -}}{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A base template with `old` replaced by `new`."""

    name: str
    base: str
    old: str
    new: str
    denies: str = ""
    """The capability that a certificate may deny instead of refusing or listing a departure."""

    @property
    def source(self) -> str:
        assert self.base.count(self.old) == 1, f"{self.name}: {self.old!r} is not there once"
        return self.base.replace(self.old, self.new)


_HEAD = "{{- '<|im_start|>' + m.role + '\n' -}}"
_CONTENT = "{{- m.content -}}"
_CLOSE = "{{- '<|im_end|>\n' -}}\n{%- endfor -%}"
_CALLS = """\
{%- for c in m.tool_calls or [] -%}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}"""
_LOOP = "{%- for m in messages -%}"
_PROMPT = "{{- '<|im_start|>assistant\n' -}}"
_EOT = "{{- '<|eot_id|>' -}}\n{%- endfor -%}\n{%- if add"
_TRIM = "{{- m.content | trim -}}"
_LLAMA_HEAD = "{{- head('ipython' if m.role == 'tool' else m.role) -}}"
_LLAMA_PROMPT = "{{- head('assistant') -}}"
_USER_LAST = "m.role == 'user' and loop.last"

HARMFUL = (
    Mutant("a counter in every header", CHATML, _HEAD, "{{- '<|im_start|>' + m.role + loop.index | string + '\n' -}}"),
    Mutant("history in reverse", CHATML, _LOOP, "{%- for m in messages | reverse -%}"),
    Mutant("only the last three messages", CHATML, _LOOP, "{%- for m in messages[-3:] -%}"),
    Mutant("how many messages there are, at the top", CHATML, _LOOP, "{{- messages | length -}}" + _LOOP),
    Mutant(
        "a close that depends on how long the turn is", CHATML, _CLOSE,
        "{{- '<|im_end|>' + ('\n\n' if m.content | length is odd else '\n') -}}\n{%- endfor -%}",
    ),
    Mutant(
        "another end of turn after long texts", CHATML, _CLOSE,
        "{{- '<|endoftext|>' if m.content | length > 12 else '<|im_end|>\n' -}}\n{%- endfor -%}",
    ),
    Mutant(
        "no close where a tool result follows", CHATML, _CLOSE,
        "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}\n{%- endfor -%}",
    ),
    Mutant("no tool results", CHATML, _LOOP, "{%- for m in messages if m.role != 'tool' -%}", "tool_results"),
    Mutant(
        "no tool results once they were answered", CHATML, _CONTENT,
        "{%- if m.role != 'tool' or loop.last -%}{{- m.content -}}{%- endif -%}",
    ),
    Mutant(
        "tool results cut short once they were answered", CHATML, _CONTENT,
        "{{- m.content if loop.last or m.role != 'tool' else m.content[:9] -}}",
    ),
    Mutant("a clock in every header", CHATML, _HEAD, "{{- '<|im_start|>' + m.role + strftime_now('%f') + '\n' -}}"),
    Mutant(
        "the date before the last user message", CHATML, _HEAD,
        "{%- if " + _USER_LAST + " -%}{{- strftime_now('%Y-%m-%d') -}}{%- endif -%}" + _HEAD,
    ),
    Mutant(
        "users in capitals in history", CHATML, _CONTENT,
        "{{- m.content | upper if m.role == 'user' and not loop.last else m.content -}}",
    ),
    Mutant(
        "the first word of every turn twice in history", CHATML, _CONTENT,
        "{{- m.content.split(' ')[0] + m.content if m.role == 'assistant' and not loop.last else m.content -}}",
    ),
    Mutant(
        "thoughts of the last turn only", CHATML, _CONTENT,
        "{%- if m.reasoning_content and loop.last -%}{{- '<think>' + m.reasoning_content + '</think>' -}}{%- endif -%}"
        + _CONTENT,
    ),
    Mutant(
        "arguments in another order in history", CHATML, _CALLS,
        "{%- set history = not loop.last -%}" + _CALLS.replace("| tojson", "| tojson(sort_keys=history)"),
    ),
    Mutant(
        "the arguments of the last call only", CHATML, "c.function.arguments | tojson -}}",
        "(c.function.arguments | tojson if loop.last else '{}') -}}", "parallel_calls",
    ),
    Mutant("the bos before all messages, not before the prompt", LLAMA, _LLAMA_HEAD, "{{- bos_token -}}" + _LLAMA_HEAD),
    Mutant(
        "tools again before the last user message", CHATML, _HEAD,
        "{%- if " + _USER_LAST + " -%}{{- '<|im_start|>tools\n' + tools | tojson -}}{%- endif -%}" + _HEAD,
    ),
    Mutant(
        "a prompt that depends on the number of messages", CHATML, _PROMPT,
        "{{- '<|im_start|>assistant' + ('\n' if messages | length < 4 else ' again\n') -}}",
    ),
    Mutant(
        "a prompt that repeats the last message", LLAMA, _LLAMA_PROMPT,
        "{{- head('assistant ' + messages[-1].content | trim) -}}",
    ),
    Mutant("history cut to a few letters", LLAMA, _TRIM, "{{- m.content | trim if loop.last else m.content[:3] -}}"),
    Mutant(
        "an end of text after the last turn of four", LLAMA, _EOT,
        "{{- '<|eot_id|>' + ('<|end_of_text|>' if loop.index is divisibleby 4 else '') -}}\n{%- endfor -%}\n{%- if add",
    ),
    Mutant("a running total of all letters", LLAMA, _EOT, "{{- messages | tojson | length -}}" + _EOT),
)  # fmt: skip
"""Each changes what stands before, in or behind a turn in a way that the turn itself does not tell."""

HARMLESS = (
    Mutant("the bos before every message", LLAMA, "{{- '<|start_header_id|>' +", "{{- '<s><|start_header_id|>' +"),
    Mutant("nothing behind the close", CHATML, _CLOSE, "{{- '<|im_end|>' -}}\n{%- endfor -%}"),
    Mutant("two lines behind the close", CHATML, _CLOSE, "{{- '<|im_end|>\n\n' -}}\n{%- endfor -%}"),
    Mutant("another role for tools", LLAMA, "'ipython'", "'environment'"),
    Mutant("results as JSON", CHATML, _CONTENT, "{{- m.content | tojson if m.role == 'tool' else m.content -}}"),
)  # fmt: skip
