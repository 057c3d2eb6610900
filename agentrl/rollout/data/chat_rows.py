"""Recorded chat as episodes: a row of messages and tools becomes the tokens of an episode with the same messages.

The row is replayed through the Conversation of an episode. Each assistant message is encoded as the model would sample
it, and read back. If the result differs in any letter, the row is skipped, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

from agentrl._util.boundary import FailedError
from agentrl.chat.request import Entry, RefusedError
from agentrl.chat.tokens.messages import EntryConverter, to_assistant_message, to_messages
from agentrl.chat.tokens.missing_words import first_message_not_in
from agentrl.chat.wires.chat import Chat
from agentrl.engine.scripted import ScriptedEngine, scripted_log_prob
from agentrl.episode.conversation import Conversation
from agentrl.episode.options import EpisodeOptions, Thinking
from agentrl.episode.reasoning import ReasoningStripper
from agentrl.errors import AgentRLError, ConfigError, TemplateError
from agentrl.render.base import Renderer
from agentrl.render.ids import plain_id
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Action, Generation, Message, Task, ToolSpec

_INLINE = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
"""Text with reasoning in <think> tags at its beginning, as in data sets of reasoning models. Two groups: the reasoning,
and the content."""
NO_TOOLS = "calls, but the row has no tools: the model does not know of them, unless its system message describes them"
NO_RESULT = "a call without a result, followed by a message of another role"
_OTHERWISE = ("functions", "function_call", "chat_template_kwargs")
"""Keys of a row that would change the tokens, and are not supported."""


class SkippedError(AgentRLError):
    """A row of chat that is skipped. Rows that are skipped for the same cause have an equal `reason`; `detail` differs
    from row to row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A row of chat as an episode. The assistant's tokens are trained, except in messages with `weight: 0`."""

    trajectory: Trajectory
    left_out: int = 0
    """The number of assistant messages at the end that do not fit into the context."""
    remarks: tuple[str, ...] = ()
    """Possible mistakes in the row, which is learned nevertheless. The same mistake has the same text in all rows."""


def other_format(row: JSON) -> str | None:
    """The advice for a row of chat in another program's format. None for any other row."""
    if isinstance(row, dict) and isinstance(row.get("conversations"), list):
        return 'rename "conversations" to "messages", each with "role" and "content"'
    return None


def is_chat(row: JSON) -> bool:
    """Whether a row is chat. A recorded trajectory is not."""
    return isinstance(row, dict) and "tokens" not in row and ("messages" in row or "completion" in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReader:
    """Turns rows of chat into episodes, with a chat template.

    A row is `{"messages": [...], "tools": [...]}` in the form of OpenAI's chat completions, or `{"prompt": [...],
    "completion": [...]}`, where only the completion is trained. `tools` may be JSON text.
    """

    renderer: Renderer
    context: int
    """The most tokens of a sequence. An assistant's turn that ends after this limit is left out as a whole."""
    thinking: Thinking = "keep"

    def read(self, row: Mapping[str, JSON]) -> ChatRow:
        """The row as an episode. Raises SkippedError for a row to skip, and ConfigError for a row that is no chat."""
        chat = _Chat.of(row)
        options = EpisodeOptions(thinking=self.thinking)
        talk = Conversation(
            ScriptedEngine((), self.renderer),
            self.renderer,
            Trajectory(Task(tools=chat.tools)),
            options,
            thoughts=ReasoningStripper() if self.thinking == "strip" else None,
            context=self.context,
        )
        with _template():
            talk.use_tools(chat.tools)
            return _Replay(talk, chat).play()


@dataclass(frozen=True, slots=True)
class _Chat:
    """The messages of a row as entries, its tools, and the assistant's entries that are not trained."""

    entries: Sequence[Entry]
    tools: Sequence[ToolSpec]
    untrained: frozenset[int]
    """Indices of the assistant's entries that are not trained."""
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, JSON]) -> _Chat:
        messages, prompt_count = _messages(row)
        for key in _OTHERWISE:
            if row.get(key):
                raise SkippedError("it has a key that is not served", key)
        try:
            request = Chat().read({"messages": messages, "tools": _tools(row.get("tools"))}, {}, "").request
        except RefusedError as exc:
            raise SkippedError("it is not a readable chat", str(exc)) from exc
        if left_out := request.recorded.get("tools_left_out"):
            raise SkippedError("it is not a readable chat", f"tools of the type {', '.join(left_out)}")
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        places = [i for i, entry in enumerate(request.entries) if entry.role == "assistant"]
        untrained = {
            place for i, place in zip(replies, places, strict=True) if i < prompt_count or not _weight(messages[i])
        }
        entries = _identified(request.entries)
        remarks = _odd_calls(entries, request.tools, untrained)
        return cls(entries, request.tools, frozenset(untrained), remarks)


@dataclass(slots=True)
class _Replay:
    """Replays a row of chat through a Conversation."""

    talk: Conversation
    chat: _Chat
    ids: dict[str, str] = field(default_factory=dict)
    """The id of a call in the row -> its id in the tokens."""

    def play(self) -> ChatRow:
        entries = self.chat.entries
        turns = _turns(entries)
        if not set(turns) - self.chat.untrained:
            raise SkippedError("no assistant message to learn after a user message")
        self._begin(entries[: turns[0]])
        taken = 0
        for start, end in pairwise([*turns, len(entries)]):
            action = self._say(start)
            taken += action is not None
            if action is None or end == len(entries) or not self._observe(entries[start + 1 : end], action):
                break
        trajectory = self.talk.trajectory
        if not any(segment.ledger.trained for segment in trajectory.segments):
            raise SkippedError(f"longer than {self.talk.context:,} tokens before the first turn to learn ends")
        return ChatRow(trajectory, len(turns) - taken, self.chat.remarks)

    def _begin(self, entries: Sequence[Entry]) -> None:
        messages = to_messages(entries, self._forms(), self.ids, root=True)
        self.talk.begin(messages)
        self._check(messages, self.talk.trajectory.tokens)

    def _say(self, index: int) -> Action | None:
        """Take the assistant's turn of entry `index`. Returns None if the turn does not fit into the context."""
        talk, entry = self.talk, _with_thought(self.chat.entries[index], self._forms())
        if any(isinstance(call.arguments, str) for call in entry.calls):
            raise SkippedError("the arguments of a call are not a JSON object", entry.calls[0].name)
        tokens = talk.renderer.encode(to_assistant_message(entry, {}), talk.trajectory.segment.ids)
        _check_end(tokens, talk.renderer)
        if talk.trajectory.segment.length + len(tokens) > talk.context:
            return None
        action = talk.say(Generation(tokens, list(map(scripted_log_prob, tokens)), "stop", tokens[-1]))
        _check_letter(entry, action)
        if index in self.chat.untrained:
            talk.trajectory.mask("host", turn=len(talk.trajectory.turns) - 1)
        ids = {wire.id: call.id for wire, call in zip(entry.calls, action.calls, strict=True)}
        self.ids |= ids | {plain_id(wire): call for wire, call in ids.items()}
        return action

    def _observe(self, entries: Sequence[Entry], action: Action) -> bool:
        """Add the messages after the assistant's turn. Returns whether the messages fit into the context."""
        messages, before = self._told(entries, action), self.talk.trajectory.segment.length
        if self.talk.observe(messages) is not None:
            return False
        segment = self.talk.trajectory.segment
        self._check(messages, segment.tokens[before:] if segment.turns else segment.tokens)
        return True

    def _told(self, entries: Sequence[Entry], action: Action) -> list[Message]:
        """The messages after the assistant's turn. A system message keeps its role if the template supports the role at
        this place."""
        forms, names = self._forms(), {call.id: call.name for call in action.calls}
        if not forms.carries("later_system"):
            return to_messages(entries, forms, self.ids, calls=names)
        messages: list[Message] = []
        for instructs, run in groupby(entries, lambda entry: entry.role in ("system", "developer")):
            if instructs:
                messages += [{"role": "system", "content": entry.text} for entry in run]
            else:
                messages += to_messages(list(run), forms, self.ids, calls=names)
        return messages

    def _check(self, messages: Sequence[Message], tokens: Sequence[int]) -> None:
        """Raises SkippedError if the tokens do not contain the content of each message."""
        index = first_message_not_in(messages, self.talk.renderer.decode(tokens))
        if index is not None:
            role, content = messages[index]["role"], messages[index]["content"]
            raise SkippedError(f"the chat template leaves out this message of the {role}", f"{content!r:.80}")

    def _forms(self) -> EntryConverter:
        certificate = self.talk.renderer.certificate
        return EntryConverter(capabilities=certificate.capabilities, results=certificate.results)


def _messages(row: Mapping[str, JSON]) -> tuple[list[Any], int]:
    """The messages of a row, and the number of prompt messages. Raises ConfigError if the row is no chat."""
    keys = ("messages",) if "messages" in row else ("prompt", "completion")
    for key in keys:
        sent = row.get(key)
        if not isinstance(sent, list) or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in sent):
            raise ConfigError(f'"{key}" must be a list of messages with a role each, not {row.get(key)!r:.60}')
    parts = [row[key] for key in keys]
    return [message for part in parts for message in part], 0 if len(parts) == 1 else len(parts[0])


def _tools(sent: JSON) -> JSON:
    if not isinstance(sent, str):
        return sent
    try:
        return json.loads(sent) if sent.strip() else None
    except ValueError as exc:
        raise SkippedError("it is not a readable chat", f"tools is text, but no JSON ({exc})") from exc


def _weight(message: Mapping[str, JSON]) -> bool:
    """Whether a message is learned, by the key `weight` (OpenAI) or `step_loss_mask` (slime). Raises SkippedError for
    any other value than 0 and 1."""
    for key in ("weight", "step_loss_mask"):
        if message.get(key) not in (None, 0, 1):
            raise SkippedError(f"the {key} of a message is neither 0 nor 1", f"{message[key]!r:.40}")
    return 0 not in (message.get("weight"), message.get("step_loss_mask"))


def _identified(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with different ids for the calls of each entry. If ids are missing or equal, tool results belong to
    calls in the order of the row."""
    result, waiting, renamed = list[Entry](), list[str](), False
    for index, entry in enumerate(entries):
        if entry.role == "tool" and waiting and (renamed or not entry.call_id):
            entry = replace(entry, call_id=waiting.pop(0))
        elif entry.role == "assistant":
            waiting = [call.id for call in entry.calls]
            renamed = len(set(waiting)) < len(waiting) or "" in waiting
            if renamed:
                waiting = [f"call {index} {number}" for number in range(len(entry.calls))]
                calls = zip(entry.calls, waiting, strict=True)
                entry = replace(entry, calls=tuple(replace(call, id=new_id) for call, new_id in calls))
        result.append(entry)
    return result


def _odd_calls(entries: Sequence[Entry], tools: Sequence[ToolSpec], untrained: Container[int]) -> tuple[str, ...]:
    """Possible mistakes in a row's calls. Raises SkippedError for calls that could only teach a mistake.

    A call of an unknown tool is allowed in untrained messages: data with corrected mistakes contains such calls.
    """
    offered = {tool["function"]["name"] for tool in tools}
    odd, ids, waiting = dict[str, None](), set[str](), set[str]()
    for index, entry in enumerate(entries):
        if entry.role == "tool":
            if entry.call_id not in ids:
                raise SkippedError("a tool's result fits no call of the turn before it", repr(entry.call_id))
            waiting.discard(entry.call_id)
        elif entry.role == "assistant":
            taught = index not in untrained
            if waiting and taught:
                raise SkippedError(
                    "a call has no result before the assistant's next message", _called(entries[:index], waiting)
                )
            if taught and entry.calls:
                _check_offered(entry, offered)
                odd |= {} if offered else {NO_TOOLS: None}
            ids = {call.id for call in entry.calls}
            waiting = set(ids)
        elif waiting:
            odd[NO_RESULT], waiting = None, set()
    return tuple(odd)


def _check_offered(entry: Entry, offered: Container[str]) -> None:
    """Raises SkippedError if an entry calls a tool that the row's tools do not contain."""
    if unknown := [call.name for call in entry.calls if offered and call.name not in offered]:
        raise SkippedError("a call of a tool that is not among the row's tools", repr(unknown[0]))


def _called(entries: Sequence[Entry], ids: Container[str]) -> str:
    return next((call.name for entry in reversed(entries) for call in entry.calls if call.id in ids), "")


def _turns(entries: Sequence[Entry]) -> list[int]:
    """Indices of the assistant's entries after the first user entry. An assistant's greeting before that is part of the
    prompt."""
    first_user = next((i for i, entry in enumerate(entries) if entry.role == "user"), len(entries))
    return [i for i, entry in enumerate(entries) if entry.role == "assistant" and i > first_user]


def _with_thought(entry: Entry, forms: EntryConverter) -> Entry:
    """The entry, with the reasoning in <think> tags moved out of its content. Raises SkippedError if the chat template
    would lose the reasoning."""
    inline = _INLINE.fullmatch(entry.text) if entry.reasoning is None else None
    thinks = forms.carries("thinking")
    if entry.reasoning and entry.reasoning.strip() and not thinks:
        raise SkippedError("a thought, and the chat template writes none", f"{entry.reasoning!r:.60}")
    return replace(entry, reasoning=inline[1].strip(), text=inline[2].strip()) if inline and thinks else entry


def _check_end(tokens: Sequence[int], renderer: Renderer) -> None:
    """Raises SkippedError unless the turn ends with its only stop token, like a sampled turn."""
    if not tokens or tokens[-1] not in renderer.stop_token_ids:
        raise SkippedError("the chat template does not end a turn of the assistant with a stop token")
    if early := renderer.stop_token_ids.intersection(tokens[:-1]):
        text = renderer.decode([min(early)])
        raise SkippedError("the assistant's message would be cut at a stop token within it", repr(text))


def _check_letter(entry: Entry, action: Action) -> None:
    """Raises SkippedError unless the turn that was read back has the text and the calls of the entry. White space at
    both ends may differ, because it depends on the template."""
    expected = [(call.name, _exact(call.arguments), None) for call in entry.calls]
    read = [(call.name, _exact(call.arguments), call.error) for call in action.calls]
    if expected != read:
        detail = next((f"{a!r:.60} became {b!r:.60}" for a, b in zip(expected, read, strict=False) if a != b), "")
        raise SkippedError(
            "a call does not come back to the letter from the chat template",
            detail or f"{len(expected)} calls became {len(read)}",
        )
    thoughts = [(thought or "").strip() for thought in (entry.reasoning, action.reasoning)]
    same = entry.text.strip() == action.content and thoughts[0] == thoughts[1]
    if not same and not (entry.reasoning is None and not expected and entry.text.strip() == action.text.strip()):
        raise SkippedError(
            "the assistant's message does not come back to the letter from the chat template",
            f"{entry.text!r:.60} became {action.content!r:.60}",
        )


def _exact(arguments: Mapping[str, JSON] | str) -> str:
    """Arguments as JSON text with sorted keys. 1, 1.0 and true give different text."""
    return json.dumps(arguments, sort_keys=True)


@contextmanager
def _template() -> Iterator[None]:
    try:
        yield
    except (FailedError, TemplateError) as exc:
        raise SkippedError("the chat template refuses it", f"{exc!s:.200}") from exc
