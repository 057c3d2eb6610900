"""Messages to tokens and back, for the chat template in hand: `load_renderer(tokenizer) -> Renderer`.

**The problem.** A model samples the tokens of one turn; the next prompt must be exactly those tokens, then what the
template writes behind them: the end of the turn, the new messages, the next generation prompt. Rendering and encoding
the whole conversation again gives other tokens (BPE merges differently, templates strip thinking, trim and re-quote),
so sampled text is never rendered nor encoded again. What is needed is only the tokens in between: the *bridge*.

**The mechanism.** Nothing is known of a template by its name; everything is read off conversations that it renders.

1. `template.py` renders messages through the tokenizer's own `apply_chat_template` and encodes text without adding
   tokens. A beginning-of-sequence token is there where the template writes one: in a prompt, once, never in a bridge.
2. `probe.py` finds the form in which the template takes messages (arguments as a mapping or as JSON text, the content
   of a silent turn, the name of thoughts), renders an assistant turn whose content and arguments are sentinels, and
   finds them again. What stands behind the last of them, whatever follows, is the turn's *close*: `lead` (the rest of a
   call's syntax), `stop` (the token that a model samples to end its turn) and `trail` (scaffolding, such as the newline
   after `<|im_end|>`). Where the template writes no close, the next special token ends the turn: GLM's `<|user|>` is
   sampled, and the first token of what follows. The stop tokens are these, the tokenizer's eos, and those of the
   folder's generation_config.json. `thinking.py` finds the markers of a thought in the same way.
3. A bridge (`turns.py`) renders [a question, a stand-in for the sampled turn, *new messages]. The stand-in has the real
   calls' ids and names, but sentinels for what the model wrote. The text behind its last sentinel is cut at the close;
   what the model sampled of the close is left out, the rest is encoded. The cost is that of the new messages, however
   long the history. The new messages go through the template, so quoting, merging of several tool results into one
   turn, and trimming are the template's own. The tokens are typed: `close`, `observation`, `prompt`. A few templates
   look back (`turns.Context`): to the system message, or to how many calls there were; certification finds that out.
4. Encoding begins behind a special token, so no merge can cross from sampled tokens into the bridge.
5. `formats.py` learns how calls are spelled by having calls with sentinels rendered: what stands around names, keys
   and values are the markers of a `JsonCalls` or `NamedCalls`, perhaps in a `Block` around all calls of a turn. The
   format is used only if it reads other calls back. `lexer.py` knows markers by token: `<tool_call>` spelled out of
   ordinary tokens is text, not a call. `parse.py` makes an Action of a turn: reasoning, content, calls, and malformed
   calls with their error.
6. `certify.py` walks the conversations of `cases.py` turn by turn, and compares prompt + sampled + bridge with the full
   render, token by token. Equal on every probe: `exact`. Where only *history* differs (Qwen 3 drops the thinking of
   earlier turns), what was sampled is kept and the departure listed: `keeps-history`. There the full render must still
   end with the bridge, and what is before it must end as the sampled turn does, so that nothing falls in between. Else
   the template is refused with the case shown. `capabilities` says which conversations the template can carry at all.

**Choices.** A turn that the model did not close gets the template's whole close. A turn closed by another stop token
than the template's keeps it, and gets the whole close after it. A turn continued with `Raw` after the model closed it
is reopened with a generation prompt. None of these tokens is sampled, and none replaces a sampled one. A template whose
calls cannot be read back serves without tools: binding tools to it is a TemplateError, for no call would be seen. Two
things are outside the proof: a turn that begins with whitespace which the tokenizer would have merged into the
generation prompt (its tokens stay as sampled), and markers such as `<|im_end|>` within an observation, which become
special tokens as they do in `apply_chat_template`. docs/templates.md has a table of real templates.
"""

from agentrl.render.base import Certificate, Rendered, RenderedSpan, Renderer, SpanKind
from agentrl.render.renderer import load_renderer

__all__ = ["Certificate", "Rendered", "RenderedSpan", "Renderer", "SpanKind", "load_renderer"]
