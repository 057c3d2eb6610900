"""Messages to tokens and back, for a given chat template: `load_renderer(tokenizer) -> Renderer`.

A model samples the tokens of a turn. The next prompt must be exactly these tokens, followed by the template's text
after the turn: the *bridge*. Sampled text is never rendered or encoded again. No template is recognized by its name.

                          tokenizer + template
                                   │
    learn/    probe ── forms, close, thoughts, stops, spelling of calls     what the template does
                                   │
              Profile              │              Block of formats/         one file per spelling of calls
                 │                 │                  │
    messages ─▶ turns, tail ─▶ tokens ─▶ model ─▶ tokens ─▶ read/ ─▶ Action
                 │                                    │
    prove/    every turn against the template's own render, and read back   Certificate
                                   │
    renderer                  the Renderer

A tail is the text of a bridge in its parts. It is rendered once for each shape of messages, and then comes from a cache
if the cache is proved (`memo`, `symbols`, `trace`). A tail that depends on earlier messages is rendered with these
messages (`context`). Every run compares some bridges with full renders (`watch`).

Modules may import the modules after them in this order: renderer, prove, turns, watch, memo, tail, context, learn,
formats, read, template, trace, symbols. docs/templates.md describes the proofs, the templates, and the reasons.
"""

from agentrl.render.base import Certificate, Renderer
from agentrl.render.learn.probe import TOOL as PROBE_TOOL
from agentrl.render.renderer import load_renderer
from agentrl.types import Rendered, RenderedSpan, SpanKind

__all__ = ["PROBE_TOOL", "Certificate", "Rendered", "RenderedSpan", "Renderer", "SpanKind", "load_renderer"]
