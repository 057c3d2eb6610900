"""Make the tokens after a sampled turn, and the tokens of a turn as a model would sample them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from agentrl._util.texts import text_of, texts_in, with_text
from agentrl.errors import TemplateError
from agentrl.render.context import Context, outlined, whole
from agentrl.render.formats.conventions import convention_of
from agentrl.render.learn.close import Close
from agentrl.render.learn.probe import QUESTION, SAID
from agentrl.render.learn.profile import Profile
from agentrl.render.memo import Check, Memo, Watch
from agentrl.render.places import TurnPlace
from agentrl.render.read.lexer import is_tag, loose, pieces
from agentrl.render.read.thinking import shared
from agentrl.render.tail import Tail, tail, text_behind
from agentrl.render.template import REASONING_FIELDS, Template
from agentrl.types import Action, CheckCounts, Message, Raw, Rendered, RenderedSpan, SpanKind, ToolCall

T = TypeVar("T")

_NONE = CheckCounts()
_CHECKS: Mapping[Check, CheckCounts] = {"": _NONE, "equal": CheckCounts(1), "different": CheckCounts(1, 1)}

CUT_ROUNDS = 8
"""Maximum number of rounds for cutting an observation, which usually takes two or three. The template's own text is
never cut."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A template with the results of its probes. Makes bridges and turns."""

    template: Template
    profile: Profile
    context: Context
    memo: Memo | None = None
    """The learned text around messages. Without a memo every bridge is rendered."""
    watch: Watch | None = None
    """Compares bridges with renders of the whole conversation. None: no comparison."""

    def bridge(
        self, history: Sequence[Message], action: Action, new: Sequence[Message], budget: int | None = None
    ) -> Rendered:
        """The tokens between the sampled turn and the next turn, see `Renderer.bridge`."""
        checks = self._watched(history, action, new)
        rendered = self._fitted(self._before(history), action, new, budget)
        return rendered if checks is _NONE else replace(rendered, checks=rendered.checks + checks)

    def _fitted(
        self, before: Sequence[Message], action: Action, new: Sequence[Message], budget: int | None
    ) -> Rendered:
        """The bridge with its observation cut to `budget` tokens."""
        rendered = self._bridge(before, action, new)
        if budget is None or _observed(rendered) <= budget:
            return rendered
        texts = (self.template.guarded("".join(texts_in(message.get("content")))) for message in new)
        contents = [self.template.encode(text) for text in texts]
        keep = sum(map(len, contents))
        cut = 0
        for _ in range(CUT_ROUNDS):
            over = _observed(rendered) - budget
            if over <= 0 or not keep:
                break
            keep = max(0, keep - over)
            shortened, cut = self._shorten(new, contents, keep)
            rendered = self._bridge(before, action, shortened)
        return replace(rendered, cut=cut)

    def bridged_text(self, history: Sequence[Message], action: Action, new: Sequence[Message]) -> str:
        """The text of a bridge, rendered and not encoded."""
        return self.tail(self._before(history), self._visible_calls(action, new), new, bool(action.content)).text

    def reopen(self, history: Sequence[Message], action: Action) -> Rendered:
        """The tokens that open a turn again after the model has ended it: the rest of the turn's end, and a generation
        prompt."""
        reads = history and (self.context.system or self._whole)
        return self._bridge(self._before(history) if reads else (QUESTION,), action, ())

    @property
    def _whole(self) -> bool:
        return self.context.whole or (self.watch is not None and self.watch.differed)

    def _before(self, history: Sequence[Message]) -> list[Message]:
        return whole(history) if self._whole else self.context.before(history)

    def _watched(self, history: Sequence[Message], action: Action, new: Sequence[Message]) -> CheckCounts:
        """Compare the bridge with a render of the whole conversation, if the Watch chooses this bridge."""
        if self.watch is None or self._whole or not self.watch.is_due(history, new):
            return _NONE
        arguments = (self.context.before(history), self._visible_calls(action, new), new, bool(action.content))
        try:
            expected = self._first_accepted(text_behind, whole(history), *arguments[1:])
        except TemplateError:  # it refuses a turn of the model, which a bridge does not show to it
            return _NONE
        bridged = self._memoised(*arguments)[0]
        if bridged.text == expected:
            return _CHECKS["equal"]
        rendered = self.tail(*arguments)
        if rendered.text == expected and self.memo is not None:
            self.memo.switch_off(self.template, rendered, bridged)
        elif rendered != bridged:  # its text holds the time, and a second has passed
            return _NONE
        else:
            self.watch.differs(self.template, bridged.text, expected)
        return _CHECKS["different"]

    def closed(self, action: Action) -> bool:
        """Whether the model ended the turn with a stop token."""
        return bool(action.tokens) and action.tokens[-1] in self.profile.stop_token_ids

    def assemble(
        self,
        close: str,
        observation: str,
        prompt: str,
        *,
        after: str = "",
        within: bool = False,
        checks: CheckCounts = _NONE,
    ) -> Rendered:
        """Encode three texts together as a Rendered. A token across two texts counts as observation.

        With `within`, the texts continue a text without a special token at its end.
        """
        encode = self.template.encode
        first: Callable[[str], list[int]] = (
            partial(encode, after=after) if after or not within else self.template.continued
        )
        tokens = first(close + observation + prompt)
        start = min(len(first(close)), len(tokens))
        stop = max(start, len(tokens) - len(encode(prompt, after="" if close or observation else after)))
        parts = spans(("close", start), ("observation", stop - start), ("prompt", len(tokens) - stop))
        return Rendered(tuple(tokens), parts, self.profile.thinking.left_open(prompt), checks=checks)

    def shorten(self, text: str, tokens: Sequence[int], keep: int) -> tuple[str, int]:
        """The text cut to its first `keep` tokens, with a mark for the number of cut tokens; and this number."""
        if len(tokens) <= keep:
            return text, 0
        cut = len(tokens) - keep
        head = self.template.decode(tokens[:keep]).rstrip("\ufffd")  # half a character
        return f"{head}… [{cut} tokens cut]", cut

    def shorten_raw(self, raw: Raw, keep: int) -> tuple[str, int]:
        """Like `shorten`, for a Raw. Its `end` is kept, and counts toward `keep`."""
        head = raw.text.removesuffix(raw.end)
        end = self.template.continued(self.template.guarded(raw.end))
        text, cut = self.shorten(head, self.template.continued(self.template.guarded(head)), max(0, keep - len(end)))
        return text + raw.end, cut

    def sampled(self, message: Message, place: TurnPlace = TurnPlace()) -> str:  # noqa: B008 - immutable
        """The text of an assistant message as a model would sample it after the generation prompt, including the stop
        token."""
        message = {**message, "role": "assistant", "content": text_of(message.get("content"))}
        message = self.template.identified([message], place.number)[0]
        if self.profile.content_after_calls and message.get("tool_calls") and message.get("content"):
            return f"{message['content']}{self.sampled({**message, 'content': ''}, place)}"
        if message.get("tool_calls") and self.profile.called is None:
            message = self._spelled(message)
        before = place.before(self.template, content=SAID if self.profile.calls_need_content else "")
        prompt = self.template.render(before, generation_prompt=True)
        text = self._up_to_stop(self.template.render([*before, message]), self._close_of(message))
        start, last = len(prompt) if text.startswith(prompt) else _begins(text, prompt), before[-1]["content"]
        if last not in text[:start]:
            raise TemplateError(
                f"the chat template of {self.template.name} writes a question differently once it is answered: "
                f"{text[max(0, start - 20) : start + 40]!r} where it had {prompt[max(0, start - 20) : start + 40]!r}"
            )
        if not text[start:]:
            raise self._unclosed(text)
        return self._from_thought(text[start:], prompt.rpartition(last)[2], message, place.thinking)

    def _from_thought(self, turn: str, prompt_end: str, message: Message, thinks: bool | None) -> str:
        """The text of a turn as the continuation of a prompt with or without an open thought.

        `thinks`: whether the prompt has opened a thought. None: as in `prompt_end`, the prompt for which the turn was
        written.
        """
        thinking, opened = self.profile.thinking, self.profile.thinking.left_open(prompt_end)
        if (opened if thinks is None else thinks) and not thinking.ends_in(turn):
            return thinking.closing + turn.lstrip()
        if thinks is False and opened and thinking.ends_in(turn):
            opening = thinking.open + prompt_end.rpartition(thinking.open)[2]
            thought = any((message.get(name) or "").strip() for name in REASONING_FIELDS)
            return opening + turn if thought else thinking.behind(turn).lstrip()
        return turn

    def _close_of(self, message: Message) -> Close:
        called = self.profile.called if message.get("tool_calls") else None
        return called or self.profile.answer

    def _up_to_stop(self, text: str, close: Close) -> str:
        ending = close.stop_if_last or close.stop
        if not ending and close.next_marker:
            return text + close.next_marker
        if ending and text.endswith(ending + close.after_last):
            return text.removesuffix(close.after_last)
        turn, stop, _ = text.rpartition(ending) if ending else ("", "", "")
        if not stop:
            raise self._unclosed(text)
        return turn + stop

    def _unclosed(self, text: str) -> TemplateError:
        return TemplateError(f"the chat template of {self.template.name} does not close this turn: {text[-40:]!r}")

    def _visible_calls(self, action: Action, new: Sequence[Message]) -> Sequence[ToolCall]:
        """The calls of a turn that are passed to the template."""
        answered = any(message.get("role") == "tool" for message in new)
        if answered and not action.calls and not self.profile.carries_orphans:
            return _orphans(new)
        if not answered and all(call.error for call in action.calls):
            return ()  # to the template, a call that cannot be read is text
        return action.calls

    def _bridge(self, before: Sequence[Message], action: Action, new: Sequence[Message]) -> Rendered:
        end, check = self._memoised(before, self._visible_calls(action, new), new, bool(action.content))
        last = self.template.decode(action.tokens[-1:]) if self.closed(action) else ""
        close = self._unsampled_close(action, end, last)
        return self.assemble(close, end.observation, end.prompt, after=last, within=not last, checks=_CHECKS[check])

    def _memoised(
        self, before: Sequence[Message], calls: Sequence[ToolCall], new: Sequence[Message], content: bool
    ) -> tuple[Tail, Check]:
        """The result of `tail`, from the memo if possible. With a whole history the memo is not used, because its shape
        never repeats."""
        if self.memo is None or self._whole:
            return self.tail(before, calls, new, content), ""
        arguments = (before, calls, new, content)
        return self.memo.tail(self.template, self.profile, arguments, lambda: self.tail(*arguments))

    def tail(self, before: Sequence[Message], calls: Sequence[ToolCall], new: Sequence[Message], content: bool) -> Tail:
        """Like `tail.tail`, with the first form of the messages that the template accepts."""
        return self._first_accepted(tail, before, calls, new, content)

    def _first_accepted(
        self,
        write: Callable[..., T],
        before: Sequence[Message],
        calls: Sequence[ToolCall],
        new: Sequence[Message],
        content: bool,
    ) -> T:
        """The result of `write` for the first form of the messages that the template accepts.

        A template may refuse a sampled turn, because of an id or of text beside a call. Then the turn's placeholder is
        simplified, and then earlier turns, too. If every form is refused, the first refusal is raised.
        """
        forms = [(calls, new, content)]
        if calls:
            plain = _with_plain_ids(calls, new)
            forms += [(*plain, content), *([(calls, new, False), (*plain, False)] if content else ())]
        failure: TemplateError | None = None
        for outline in (False, True):
            earlier = outlined(before) if outline else list(before)
            if outline and earlier == list(before):
                break
            for visible, answers, says in forms:
                try:
                    return write(self.template, self.profile, visible, answers, content=says, before=earlier)
                except TemplateError as exc:
                    failure = failure or exc
        assert failure is not None
        raise failure

    def _unsampled_close(self, action: Action, end: Tail, last: str) -> str:
        """The part of the turn's end that the model did not sample.

        After the template's stop token, only the rest of the template's end of a turn is missing. After another stop
        token (`<|endoftext|>`), or without a stop token (a cut turn, a stop string), the template's whole end follows
        the sampled tokens, so that the next message begins as usual.
        """
        if last and last in end.ends:
            return end.after_stop
        before = "" if last else self._unsampled_lead(action)
        return before + end.stop + end.after_stop

    def _unsampled_lead(self, action: Action) -> str:
        """The template's text before its stop token. Empty if the turn already ends with this text."""
        if not action.calls:
            return _missing(self.profile.answer.before_stop, action.text)
        lead = (self.profile.called or self.profile.answer).before_stop
        syntax = lead.rstrip()
        if syntax and not action.text.rstrip().endswith(pieces(syntax)[-1]):
            return _rest_of_list(lead, action.text)
        return _missing(lead[len(syntax) :], action.text)

    def _shorten(
        self, new: Sequence[Message], contents: Sequence[Sequence[int]], keep: int
    ) -> tuple[list[Message], int]:
        """The messages cut to `keep` tokens of content in total. The longest messages are cut to a common length."""
        longest, remaining = 0, keep
        lengths = sorted(map(len, contents))
        for i, length in enumerate(lengths):
            longest = remaining // (len(lengths) - i)
            if length > longest:
                break
            remaining -= length
        messages, cut = list[Message](), 0
        for message, tokens in zip(new, contents, strict=True):
            if len(tokens) <= longest:
                messages.append(message)
                continue
            content, lost = self.shorten("".join(texts_in(message["content"])), tokens, longest)
            messages.append({**message, "content": with_text(message["content"], content)})
            cut += lost
        return messages, cut

    def _spelled(self, message: Message) -> Message:
        """The message with its calls written as text, for a template without calls."""
        functions = [call.get("function") or call for call in message["tool_calls"]]
        content = "\n".join(filter(None, [message["content"], convention_of(self.template).write(functions)]))
        return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _missing(lead: str, text: str) -> str:
    """The rest of `lead` after the beginning of `lead` at the end of the text."""
    return next(lead[count:] for count in range(len(lead), -1, -1) if text.endswith(lead[:count]))


def _rest_of_list(lead: str, text: str) -> str:
    """The end of a list of calls, such as `<｜tool▁calls▁end｜>`, for a text that ends with the end of a call.

    Empty if the text does not end with the end of a call, which is not added here.
    """
    parts = pieces(lead)
    ends = [index for index, part in enumerate(parts[:-1], 1) if is_tag(part) and text.rstrip().endswith(part)]
    return "".join(parts[ends[-1] :]) if ends else ""


def spans(*lengths: tuple[SpanKind, int]) -> tuple[RenderedSpan, ...]:
    """Adjacent RenderedSpans from pairs of kind and length. Empty spans are left out."""
    offset, parts = 0, list[RenderedSpan]()
    for kind, length in lengths:
        if length:
            parts.append(RenderedSpan(kind, offset, offset + length))
        offset += length
    return tuple(parts)


def _begins(text: str, prompt: str) -> int:
    """The offset at which a turn begins in a render that does not begin with the generation prompt.

    The turn begins after the text that render and prompt share at their start, and after the prompt's end if only
    markers come before. History may leave out a part of the prompt, such as an opened thought, but the header of a turn
    is no part of the turn.
    """
    start = len(shared(text, prompt))
    rest = pieces(prompt[start:])
    ends = ["".join(rest[i:]) for i in range(len(rest)) if any(map(is_tag, rest[i:]))]
    exact, spaced = map(re.escape, ends), (loose(end) + r"\s*" for end in ends)  # history may vary a header's spaces
    for pattern in (*exact, *spaced):
        match = re.compile(pattern).search(text, start)
        before = pieces(text[start : match.start()]) if match else ()
        if match and all(is_tag(piece) or not piece.isalnum() for piece in before):
            return match.end()
    return start


def _orphans(new: Sequence[Message]) -> list[ToolCall]:
    """Calls for tool messages that have no call, because some templates refuse or drop such messages."""
    tools = [message for message in new if message.get("role") == "tool"]
    return [
        ToolCall(message.get("tool_call_id") or f"call_{i}", message.get("name") or "unknown", {})
        for i, message in enumerate(tools)
    ]


def _with_plain_ids(calls: Sequence[ToolCall], new: Sequence[Message]) -> tuple[Sequence[ToolCall], Sequence[Message]]:
    """Calls and results with ids of nine letters and digits, which every template accepts."""
    ids = {call.id: f"call{i:05}" for i, call in enumerate(calls)}
    answers = [
        {**m, "tool_call_id": ids.get(m["tool_call_id"], m["tool_call_id"])} if "tool_call_id" in m else m for m in new
    ]
    return [replace(call, id=ids[call.id]) for call in calls], answers


def _observed(rendered: Rendered) -> int:
    return sum(span.stop - span.start for span in rendered.spans if span.kind == "observation")
