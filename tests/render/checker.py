"""An independent judge of renderers: the template's own full render against prompt + sampled + bridge.

Shares no code with `agentrl.render`; it knows a renderer only by the protocol. For each turn of a conversation it

1. has the template render the whole conversation up to the next turn: the *full render*;
2. plays the model: what the template writes behind the prompt is "sampled" until a stop token of the renderer, as an
   engine would: the turn as it stands last in a conversation, or as history shows it;
3. has the renderer parse and bridge them, and compares.

Where the full render begins with the tokens so far, the template is prefix-stable there, and prompt + sampled + bridge
must equal it token for token. Where it does not (thinking dropped from history), the prompt and the sampled tokens must
be kept, the bridge must be what the full render has behind the turn, and the certificate must not say `exact`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jinja2 import TemplateError as JinjaError

from agentrl.errors import TemplateError
from agentrl.render import Renderer
from agentrl.types import Action

REFUSALS = (JinjaError, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What a template raises that cannot carry a conversation."""

WORD = re.compile(r"[A-Za-z0-9]+")
"""What no template changes when it quotes or trims."""

Kind = Literal["prompt", "sampled", "calls", "bridge", "history", "refused"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in which each assistant message is a sampled turn and something follows the last of them."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    needs: tuple[str, ...] = ()
    """Capabilities that a certificate may deny; it then says that no episode may hold such a conversation."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a renderer and its template part. `history` is a departure that `keeps-history` allows; no other is."""

    conversation: str
    turn: int
    kind: Kind
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.conversation}, turn {self.turn}: {self.kind}: {self.ours!r}, but the template {self.theirs!r}"


@dataclass(frozen=True, slots=True)
class Judge:
    """A template as the tokenizer itself renders it, beside the renderer to judge."""

    renderer: Renderer
    tokenizer: Any
    tools: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] | None = None
    _rendered: dict[str, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = True) -> list[int]:
        """The template's own tokens of the whole conversation; raises what the template raises."""
        key = repr((prompt, messages))  # most beginnings are asked for several times
        if key not in self._rendered:
            self._rendered[key] = self._render(messages, prompt)
        return list(self._rendered[key])

    def _render(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> list[int]:
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(self.tools) or None,
            add_generation_prompt=prompt,
            tokenize=True,
            return_dict=False,
            **(self.template_kwargs or {}),
        )

    def carries(self, conversation: Conversation) -> bool:
        """Whether the template renders this conversation at every turn, and drops no message that is not a turn."""
        messages = conversation.messages
        try:
            for end in turns(messages):
                self.render(messages[:end])
            shown = self.text(self.render(messages))
        except REFUSALS:
            return False
        contents = [message["content"] for message in messages if message["role"] != "assistant"]
        return all(_shown(content, shown) for content in contents)

    def shows(self, conversation: Conversation) -> bool:
        """Whether the template also writes everything that the turns themselves say, in its order."""
        messages = conversation.messages
        for start in turns(messages):
            before = len(self.render(messages[:start], prompt=False))
            shown = self.text(self.render(messages[: start + 1], prompt=False)[before:])
            at = [shown.find(word) for word in _words(messages[start])]
            if -1 in at or at != sorted(at):
                return False
        return True

    def differences(self, conversation: Conversation, as_in_history: bool = False) -> list[Difference]:
        """Every difference on a conversation that the template carries; empty: continuation is the full render.

        The model writes its turns as the template does where they stand last, or else `as_in_history`.
        """
        messages = conversation.messages
        starts = turns(messages)
        prompt = self.renderer.prompt(messages[: starts[0]])
        kept, thinking, own = list(prompt.tokens), prompt.thinking, self.render(messages[: starts[0]])
        found = [self._differ(conversation, 0, "prompt", kept, own)] if kept != own else []
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(messages)], strict=True)):
            sampled, stable = self.sample(kept, messages, start, end, as_in_history)
            action = self.renderer.parse(sampled, "stop", sampled[-1], thinking=thinking)
            if problem := misread(action, sampled, messages[start]):
                return [*found, Difference(conversation.name, number, *problem)]
            try:
                bridge = self.renderer.bridge(messages[: start + 1], action, answered(messages[start:end], action))
            except TemplateError as exc:
                return [*found, Difference(conversation.name, number, "refused", str(exc), "renders this")]
            kept, thinking, full = [*kept, *sampled, *bridge.tokens], bridge.thinking, self.render(messages[:end])
            if kept != full:
                history = not stable and self._stands_behind(bridge.tokens, full, sampled, messages, start, end)
                found.append(self._differ(conversation, number, "history" if history else "bridge", kept, full))
        return found

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def sample(
        self, kept: list[int], messages: Sequence[Mapping[str, Any]], start: int, end: int, as_in_history: bool
    ) -> tuple[list[int], bool]:
        """The turn as the template writes it behind the prompt, and whether what follows it leaves it as it stands.

        Where the template shows it neither last nor in history (it writes no calls), as the renderer would write it.
        """
        turn, full = messages[start], self.render(messages[:end])
        prompt, last = self.render(messages[:start]), self.render(messages[: start + 1], prompt=False)
        alone = self._until_stop(last, prompt, turn, ())
        here = self._until_stop(full, kept, turn, messages[start + 1 : end])
        sampled = (here or alone) if as_in_history else (alone or here)
        if sampled is None:
            written = self.renderer.encode(turn)
            ends = (i for i, token in enumerate(written) if token in self.renderer.stop_token_ids)
            sampled = written[: next(ends, len(written)) + 1]
        return sampled, full[: len(kept) + len(sampled)] == [*kept, *sampled]

    def _until_stop(
        self,
        render: list[int],
        before: list[int],
        turn: Mapping[str, Any],
        following: Sequence[Mapping[str, Any]],
    ) -> list[int] | None:
        """What a model that writes `render` has sampled when the engine stops it; None if that is not this turn."""
        if render[: len(before)] != before:
            return None
        stops = (i for i in range(len(before), len(render)) if render[i] in self.renderer.stop_token_ids)
        stop = next(stops, None)
        if stop is None:
            return None
        sampled = render[len(before) : stop + 1]
        text = self.text(sampled)
        says_all = all(_shown(word, text) for word in _words(turn))
        runs_over = any(m["content"].strip() and _shown(m["content"], text) for m in following)
        return sampled if says_all and not runs_over else None

    def _stands_behind(
        self,
        bridge: Sequence[int],
        full: list[int],
        sampled: list[int],
        messages: Sequence[Mapping[str, Any]],
        start: int,
        end: int,
    ) -> bool:
        """Whether the bridge is what the full render has behind this turn: all that is new, and nothing else."""
        new = all(_shown(message["content"], self.text(bridge)) for message in messages[start + 1 : end])
        prompt, before = self.render(messages[:start]), full[: len(full) - len(bridge)]
        shown = before[len(prompt) :] if before[: len(prompt)] == prompt else before
        closed_twice = list(bridge[:1]) == sampled[-1:] != shown[-1:]
        late = not self.text(shown[-1:]).strip()  # what stands between the stop token and the next message is new
        behind = [*before, *bridge] == full and not closed_twice and not late
        return new and behind and self._ends(messages[start], sampled, shown)

    def _ends(self, turn: Mapping[str, Any], sampled: list[int], shown: list[int]) -> bool:
        """Whether `shown`, what the full render has of the turn before the bridge, ends where the turn ends.

        Whitespace aside, it does so with the same two tokens; or, special tokens aside too, with the same text behind
        the last word of the turn; or, where the template drops or moves a part, with no word that was not sampled.
        """
        ends = [[token for token in side[-6:] if self.text([token]).strip()][-2:] for side in (sampled, shown)]
        if ends[0] == ends[1]:
            return True
        special = {token for token, added in self.tokenizer.added_tokens_decoder.items() if added.special}
        ours, theirs = (self.text([token for token in side if token not in special]) for side in (sampled, shown))
        last = max((word for word in _words(turn) if word in ours and word in theirs), key=ours.rindex, default="")
        left = theirs.rpartition(last)[2] if last else theirs
        same = last and left.split() == ours.rpartition(last)[2].split()
        return bool(same) or set(WORD.findall(left)) <= set(WORD.findall(ours))

    def _differ(
        self, conversation: Conversation, turn: int, kind: Kind, ours: Sequence[int], theirs: Sequence[int]
    ) -> Difference:
        """Both sides as text from a little before where they part."""
        pairs = enumerate(zip(ours, theirs, strict=False))
        part = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        ours, theirs = (self.text(side[max(0, part - 4) : part + 16]) for side in (ours, theirs))
        return Difference(conversation.name, turn, kind, ours, theirs)


def misread(action: Action, sampled: list[int], turn: Mapping[str, Any]) -> tuple[Kind, str, str] | None:
    """What the renderer read wrongly in a sampled turn: its tokens, or its calls."""
    if list(action.tokens) != sampled:
        return "sampled", f"{len(action.tokens)} tokens", f"{len(sampled)} tokens"
    read = [(call.name, dict(call.arguments), call.error) for call in action.calls]
    called = [(call["function"]["name"], call["function"]["arguments"], None) for call in turn.get("tool_calls", ())]
    return ("calls", str(read), str(called)) if read != called else None


def answered(messages: Sequence[Mapping[str, Any]], action: Action) -> list[Mapping[str, Any]]:
    """The messages behind the turn `messages[0]`, tool results under the ids that its calls were read with."""
    calls = zip(messages[0].get("tool_calls", ()), action.calls, strict=False)
    ids = {written["id"]: read.id for written, read in calls}
    known = [ids.get(message.get("tool_call_id"), message.get("tool_call_id")) for message in messages[1:]]
    return [{**m, "tool_call_id": i} if i else m for m, i in zip(messages[1:], known, strict=True)]


def turns(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def _words(turn: Mapping[str, Any]) -> list[str]:
    """Words of a turn that no quoting changes: the last one of its thoughts, its content, and each argument."""
    texts = [turn.get("reasoning_content") or "", turn.get("content") or ""]
    for call in turn.get("tool_calls", ()):
        texts += [value for value in call["function"]["arguments"].values() if isinstance(value, str)]
    words = [WORD.findall(text) for text in texts]
    return [found[-1] for found in words if found]


def _shown(content: str, text: str) -> bool:
    """Whether the words of the content stand in the text, however it was trimmed or quoted."""
    return all(word in text for word in WORD.findall(content))
