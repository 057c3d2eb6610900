"""An oracle of bridges in conversations with switches: the template's own render of the whole conversation.

It shares no code with `agentrl.render`. It knows a renderer by its protocol, and a template by what the tokenizer
renders. A switch is a word that some templates look for in a message: it decides how later turns begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import TemplateError
from agentrl.render import Renderer
from agentrl.types import Action
from tests.render.checker import REFUSALS, Judge
from tests.render.probes import asks, gives, says, user

WORDS = (
    "/no_think",
    "/think",
    "/nothink",
    "<|think_off|>",
    "<|think_on|>",
    "detailed thinking off",
    "Error: no such file",
    "[[quick]]",
)
PLACES = ("nowhere", "system", "first user", "second user", "last user", "all users", "first result", "all results")
TURNS = ("zulua", "zulub", "zuluc", "zulud", "zulue")
"""The last word of each turn, by which the end of the turn is found."""


@dataclass(frozen=True, slots=True)
class SwitchJudge:
    """A renderer beside the template of its tokenizer."""

    renderer: Renderer
    tokenizer: Any
    tools: Sequence[Mapping[str, Any]] = ()
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "judge", Judge(self.renderer, self.tokenizer, self.tools))

    def differences(self, messages: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """Bridges that differ from the whole conversation, with both texts. None if the template refuses it."""
        starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        try:
            first, _ = self.judge.render(messages[: starts[0]]), self.judge.render(messages)
            prompt = self.renderer.prompt(messages[: starts[0]])
        except (*REFUSALS, TemplateError):
            return None
        different = [] if list(prompt.tokens) == first else ["the prompt"]
        written, thinking = list(prompt.tokens), prompt.thinking
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(messages)], strict=True)):
            try:
                sampled, _ = self.judge.sample(written, messages, start, end, False)
            except REFUSALS:
                return None
            action = self.renderer.parse(sampled, "stop", sampled[-1], thinking=thinking)
            messages = _under_ids(messages, start, action)
            bridge = self.renderer.bridge(messages[: start + 1], action, messages[start + 1 : end])
            written, thinking = [*written, *sampled, *bridge.tokens], bridge.thinking
            full = self.judge.render(messages[:end])
            ours = self._after(TURNS[number], [*sampled, *bridge.tokens])
            theirs = self._after(TURNS[number], full)
            ends = list(bridge.tokens) == full[len(full) - len(bridge.tokens) :]
            if written != full and not (ends and self._same(ours, theirs)):
                different.append(f"turn {number}: {ours!r}, but the template {theirs!r}")
        return different

    def _same(self, ours: str, theirs: str) -> bool:
        """Whether both texts are equal, but for a special token with which history ends the turn."""
        added = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        return ours == theirs or (theirs.endswith(ours) and theirs.removesuffix(ours) in added)

    def _after(self, word: str, tokens: Sequence[int]) -> str:
        """The text after the last `word`, without spaces and without the stop token, which history may leave out."""
        text = self.judge.text(tokens).rpartition(word)[2]
        for stop in self.renderer.stop_token_ids:
            text = text.replace(self.judge.text([stop]), "")
        return "".join(text.split())


def conversations(words: Sequence[str], capabilities: Mapping[str, bool]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Conversations in which each word is at each place, with a name each."""
    calls = capabilities.get("tool_results", False) and capabilities.get("calls", False)
    system = capabilities.get("system", False)
    for word in words:
        for place in PLACES:
            if (place == "system" and not system) or ("result" in place and not calls):
                continue
            yield f"{word} in {place}", _conversation(word, place, system=system, calls=calls)


def _under_ids(messages: Sequence[Mapping[str, Any]], at: int, action: Action) -> list[Mapping[str, Any]]:
    """The conversation. The calls of the turn and their results have the ids with which the turn was read."""
    ids = {call["id"]: read.id for call, read in zip(messages[at].get("tool_calls", ()), action.calls, strict=False)}
    turn = dict(messages[at])
    if "tool_calls" in turn:
        turn["tool_calls"] = [{**call, "id": ids.get(call["id"], call["id"])} for call in turn["tool_calls"]]
    answers = [
        {**message, "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
        if "tool_call_id" in message
        else message
        for message in messages[at + 1 :]
    ]
    return [*messages[:at], turn, *answers]


def _conversation(word: str, place: str, *, system: bool, calls: bool) -> list[dict[str, Any]]:
    def text(content: str, *places: str) -> str:
        return f"{content} {word}" if place in places else content

    first, second = "aaaaaaaa1", "bbbbbbbb2"
    messages: list[dict[str, Any]] = [{"role": "system", "content": text("Be brief.", "system")}] if system else []
    messages += [user(text("alpha?", "first user", "all users")), says("So zulua")]
    messages += [user(text("beta?", "second user", "all users"))]
    if calls:
        messages += [
            {**asks(first), "tool_calls": _named(first, "zulub")},
            gives(first, text("r1", "first result", "all results")),
        ]
        messages += [{**asks(second), "tool_calls": _named(second, "zuluc")}, gives(second, text("r2", "all results"))]
    else:
        messages += [says("So zulub"), user("gamma?"), says("So zuluc"), user("delta?")]
    messages += [says("So zulud"), user(text("epsilon?", "last user", "all users")), says("So zulue"), user("Bye")]
    return messages


def _named(call_id: str, word: str) -> list[dict[str, Any]]:
    return [{"id": call_id, "type": "function", "function": {"name": "book", "arguments": {"place": word}}}]
