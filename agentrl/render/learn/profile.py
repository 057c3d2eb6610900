"""The facts of a template, learned by probes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.errors import ConfigError, TemplateError
from agentrl.render.learn.close import Close, behind, close_of
from agentrl.render.learn.probe import ASKED, QUESTION, REPLY, RESULT, SAID, assistant
from agentrl.render.learn.thoughts import learn_thinking
from agentrl.render.read.thinking import Thinking
from agentrl.render.template import Template


@dataclass(frozen=True, slots=True)
class Profile:
    """The facts of a template, learned by probes."""

    answer: Close
    called: Close | None
    """The end of a turn with calls. None if the template does not write calls."""
    parallel_calls: bool
    calls_need_content: bool
    content_after_calls: bool
    """Whether the template writes a turn's content after its calls, although a model writes content before calls."""
    carries_orphans: bool
    """Whether the template shows a tool result that has no call."""
    thinking: Thinking
    stop_token_ids: frozenset[int]

    @classmethod
    def of(cls, template: Template, *, calls: bool = True) -> Profile:
        """Probe the template. Raises TemplateError if an assistant's turn is dropped or has no end.

        Without `calls` the template is treated as a template without calls.
        """
        text = template.render([QUESTION, assistant(SAID)])
        if SAID not in text:
            raise TemplateError(f"the chat template of {template.name} does not write the assistant's text")
        answer = close_of(template, assistant(SAID), REPLY, SAID)
        if not answer.sampled_stop:
            raise TemplateError(f"the chat template of {template.name} does not close this turn: {text[-40:]!r}")
        needs_content = ASKED not in (template.try_render([QUESTION, assistant("", [ASKED])]) or "")
        content = SAID if needs_content else ""
        turn = assistant(content, [ASKED])
        writes_calls = calls and ASKED in (template.try_render([QUESTION, turn]) or "")
        two = template.try_render([QUESTION, assistant(content, [f"{ASKED}0", f"{ASKED}1"])]) or ""
        between = two.partition(f"{ASKED}0")[2].partition(f"{ASKED}1")
        parallel = bool(between[1]) and not template.named_stop(between[0])  # else each call is a separate turn
        syntax = between[0] if parallel else ""
        called = close_of(template, turn, RESULT, ASKED, syntax) if writes_calls else None
        orphan = template.try_render([QUESTION, assistant(SAID), RESULT]) or ""
        both = template.try_render([QUESTION, assistant(SAID, [ASKED]), RESULT]) or ""
        return cls(
            answer=answer,
            called=called,
            parallel_calls=parallel,
            calls_need_content=needs_content,
            carries_orphans=RESULT["content"] in orphan.rpartition(SAID)[2],
            content_after_calls=0 <= both.rfind(ASKED) < both.rfind(SAID),
            thinking=_thinking(template, answer),
            stop_token_ids=frozenset(_stop_ids(template, answer, called)),
        )


def _thinking(template: Template, answer: Close) -> Thinking:
    """The markers around thoughts. `ends_more` is set if the end marker also ends content that more text follows."""
    thinking = learn_thinking(template)
    ends_messages = bool(answer.stop_if_last) and thinking.close == answer.stop
    return replace(thinking, ends_more=thinking.ends_more or ends_messages)


def _stop_ids(template: Template, answer: Close, called: Close | None) -> Iterable[int]:
    """The ids of tokens that end a turn: from the tokenizer, from the template, and from the model's folder."""
    tokenizer = template.tokenizer
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    for close in filter(None, (answer, called)):
        special = template.special_in(close.sampled_stop)
        if special is not None:
            yield special[1]
    if not answer.stop and not answer.stop_if_last:
        text = template.try_render([QUESTION, assistant(SAID), RESULT]) or ""
        special = template.special_in(behind(text, [SAID])) if SAID in text else None
        if special is not None:
            yield special[1]
    yield from named_stops(getattr(tokenizer, "name_or_path", ""))


def named_stops(folder: str) -> list[int]:
    """`eos_token_id` of the folder's generation_config.json, if there is one. Raises ConfigError if it is broken."""
    path = Path(folder or ".") / "generation_config.json"
    if not folder or not path.is_file():
        return []
    try:
        stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as exc:
        raise ConfigError(f"{path}: not a generation config ({exc}); repair it or remove it") from exc
    return [stop for stop in (stops if isinstance(stops, list) else [stops]) if isinstance(stop, int)]
