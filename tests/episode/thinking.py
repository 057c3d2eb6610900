"""A template that drops earlier thoughts, and an Env whose model thinks."""

from __future__ import annotations

from agentrl import (
    Env,
    StepResult,
    Task,
    tool,
)
from agentrl.testing import call

TEMPLATE = """\
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}
{{- '<|im_start|>system\n' -}}{%- for t in tools -%}{{- t | tojson + '\n' -}}{%- endfor -%}{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}
{%- endif -%}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{%- if m.content or not loop.first -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""In the style of Qwen3: an answer before the last user message is written without its thought."""


TASK = Task(prompt="Guess my word.", label="c")


def think(thought: str, message: dict | str) -> dict:
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    return {**said, "reasoning_content": thought}


SCRIPT = [
    think("I ask the oracle.", call("oracle", letter="a")),  # answered by a tool: the thought stays
    think("It is not a.", "a"),
    think("Then b.", "b"),
    "c",  # no thought: nothing to drop behind it
    think("Was it c?", "c"),
]


class Guess(Env):
    """Answers a guess as the user, a call as the tool."""

    @tool
    async def oracle(self, letter: str) -> str:
        """Ask about a letter."""
        return f"Not {letter}."

    async def step(self, action):
        return await super().step(action) if action.calls else StepResult(f"Not {action.content}.", reward=0.5)
