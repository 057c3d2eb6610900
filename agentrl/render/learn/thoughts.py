"""Learn the markers around a model's thoughts from the template's text around a thought."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.render.learn.probe import ASKED, QUESTION, SAID, THOUGHT, assistant, behind_question
from agentrl.render.read.lexer import has_tag, is_tag, pieces
from agentrl.render.read.thinking import Thinking, shared
from agentrl.render.template import Template


def learn_thinking(template: Template) -> Thinking:
    """The markers around a thought. If the template writes no thoughts: the most common markers."""
    before_answer = _around(template, SAID, ())
    before_call = _around(template, "", (ASKED,))
    around = before_answer or before_call
    if around is None:
        return Thinking()
    before, after = around
    prompt = behind_question(template.render([QUESTION], generation_prompt=True))
    bare = behind_question(template.render([QUESTION, assistant(SAID)])).partition(SAID)[0]
    other = before_call[1] if before_answer and before_call else None
    close = _close(after, other, bare if before_answer else "")
    if not close.strip():
        return Thinking()  # a thought and the text after look alike: reading back will show this
    two = template.try_render([QUESTION, assistant("", [f"{ASKED}0", f"{ASKED}1"])]) or ""
    between = two.partition(f"{ASKED}0")[2].partition(f"{ASKED}1")[0]
    return Thinking(_open(before, prompt, close.strip()), close.strip(), close, close.strip() in between)


def _around(template: Template, content: str, arguments: tuple[str, ...]) -> tuple[str, str] | None:
    """Two texts: between the question and a thought, and between the thought and the content or the call."""
    field = template.forms.reasoning_field
    text = template.try_render([QUESTION, {**assistant(content, arguments), field: THOUGHT}]) or ""
    if text.count(THOUGHT) != 1:
        return None
    before, _, after = text.partition(THOUGHT)
    return behind_question(before), after.partition(content or ASKED)[0]


def _close(after: str, other: str | None, bare: str) -> str:
    """Find the end marker of a thought, by the most reliable evidence.

    `after` is the text between a thought and an answer, `other` the text between a thought and a call, `bare`
    the text before an answer without a thought.
    """
    parts = pieces(after)
    in_both = _end_in_both(parts, after, other) if other is not None else ""
    return in_both or _end_before(parts, bare) or _first_tag(parts)


def _end_in_both(parts: Sequence[str], after: str, other: str) -> str:
    """The text that follows a thought both before an answer and before a call, up to the start of a tag."""
    common = shared(after, other)
    cuts = [len("".join(parts[:i])) for i in range(len(parts) + 1)]
    fits = [cut for cut in cuts if cut <= len(common) and _begins_anew(after[cut:]) and _begins_anew(other[cut:])]
    end = after[: max(fits, default=0)]
    return end if has_tag(end) else ""


def _end_before(parts: Sequence[str], bare: str) -> str:
    """The text after a thought without the tags with which every answer begins. The first tag always stays."""
    tags = [i for i, piece in enumerate(parts) if is_tag(piece)]
    for i in tags[1:]:
        if bare.endswith("".join(parts[i:])):
            return "".join(parts[:i])
    return ""


def _first_tag(parts: Sequence[str]) -> str:
    """The text up to the first tag and the space after the tag. Without a tag, all of the text."""
    end = next((i for i, piece in enumerate(parts) if is_tag(piece)), len(parts) - 1)
    space = parts[end + 1] if end + 1 < len(parts) and parts[end + 1].isspace() else ""
    return "".join(parts[: end + 1]) + space


def _begins_anew(text: str) -> bool:
    return not text or text[0] in "<["


def _open(before: str, prompt: str, close: str) -> str:
    """The opening marker of a thought: text that only a turn with a thought has, or only the prompt; else the last
    tags.

    If the prompt opens the thought, history leaves out the opening marker of the prompt. The marker may be a phrase
    ("Here are my reasoning steps:").
    """
    added, dropped = before[len(shared(before, prompt)) :], prompt[len(shared(before, prompt)) :].strip()
    if has_tag(added) and before == prompt + added:
        return added.strip()  # a turn begins with it
    if has_tag(added):
        return _from_a_tag(before, len(before) - len(added)).strip()
    if dropped and close not in dropped:
        return dropped
    opening = pieces(before)
    tags = [i for i, piece in enumerate(opening) if is_tag(piece)]
    as_many = max(1, sum(map(is_tag, pieces(close))))  # <|open|>think<|sep|> for <|close|>think<|sep|>
    return "".join(opening[tags[-as_many] :]).strip() if len(tags) >= as_many else Thinking().open


def _from_a_tag(text: str, offset: int) -> str:
    """The text from `offset` on, or from the tag before it if `offset` is inside a tag's word."""
    if _begins_anew(text[offset:].lstrip()):
        return text[offset:]
    parts, start = pieces(text), 0
    begins = [0]
    for piece in parts:
        start += len(piece)
        begins.append(start)
    tags = [begin for begin, piece in zip(begins, parts, strict=False) if is_tag(piece) and begin < offset]
    return text[max(tags) :] if tags else text[offset:]
