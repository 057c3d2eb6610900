"""The fields with the same meaning in several APIs: retries, arguments of the chat template, stops, continued
replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.chat.request import Entry
from agentrl.chat.wires import forcing, reading
from agentrl.chat.wires.reading import refuse
from agentrl.types import JSON


class Common(reading.Retry):
    """The common fields of a ChatRequest."""

    parallel: bool
    template_kwargs: Mapping[str, JSON]
    effort: str | None
    stop_token_ids: tuple[int, ...]
    shows_stop: bool
    shows_thoughts: bool


def common(body: Mapping[str, JSON], headers: Mapping[str, str], *, effort: JSON) -> Common:
    """Read the common fields. `effort`: how much the model should think, in OpenAI's words. None if the client did not
    set an effort.

    Raises RefusedError for a field of the wrong type.
    """
    arguments = body.get("chat_template_kwargs")
    return {
        **reading.retry(headers),
        "parallel": forcing.parallel(body),
        "template_kwargs": {} if arguments is None else reading.mapping(arguments, "chat_template_kwargs"),
        "effort": effort if isinstance(effort, str) else None,
        "stop_token_ids": reading.integers(body.get("stop_token_ids"), "stop_token_ids"),
        "shows_stop": body.get("include_stop_str_in_output") is True or body.get("no_stop_trim") is True,
        "shows_thoughts": body.get("include_reasoning") is not False,
    }


def stop(body: Mapping[str, JSON]) -> tuple[str, ...]:
    """The stop strings in the fields of OpenAI's chat API and of vLLM and SGLang."""
    return reading.strings(body.get("stop"), "stop")


def left_out(tools: Sequence[str]) -> dict[str, JSON]:
    """The record of omitted tools."""
    return {"tools_left_out": list(tools)} if tools else {}


def continues(body: Mapping[str, JSON], entries: Sequence[Entry], *, marked: bool) -> bool:
    """Whether the model continues the last message. `marked`: the message has a flag that asks for a continuation.

    Raises RefusedError if the last message is not the assistant's.
    """
    if body.get("continue_final_message") is not True and not marked:
        return False
    if not entries or entries[-1].role != "assistant" or entries[-1].calls:
        raise refuse("continue_final_message: the last message must be the assistant's, without calls; send it last")
    return True


def is_open(entries: Sequence[Entry]) -> bool:
    """Whether the last message is an assistant's without calls, which Anthropic's and Google's models continue."""
    return entries[-1].role == "assistant" and not entries[-1].calls
