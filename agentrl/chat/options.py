"""The options of an agent's session: a session holds all requests of an agent to its model during an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How the replies of an agent's session become tokens to train on. The defaults train everything, once."""

    echo: Literal["stored", "as_sent"] = "stored"
    """The treatment of a reply that a client sends back in changed form. "stored" keeps the sampled tokens. "as_sent"
    begins a branch with the client's text."""
    dropped: Literal["train", "mask"] = "train"
    """Whether to train replies that the agent dropped from the history and asked for again."""
    side: Literal["train", "mask"] = "train"
    """Whether to train other conversations within the session: sub-agents, titles, summaries."""
    sticky_tools: bool = False
    """If a request without tools continues a known history, keep the history's tools in the prompt. So the engine's
    prefix cache still matches."""
    most_replies: int = 8
    """The largest accepted value of a request's `n`, the number of replies."""
    replies: int | None = None
    """The most replies of an episode, all conversations together, if `limits.turns` is not set."""
    images: Literal["refuse", "omit"] = "refuse"
    """The treatment of media that the model does not read, such as PDFs, and of images for a text model. "refuse"
    refuses the request. "omit" puts a note in place of the media."""
    forced: Literal["exact", "ignore", "refuse"] = "exact"
    """The treatment of a `tool_choice` that forces a call, and of a required format of the answer. "exact" samples
    under a grammar, and refuses the request if the engine cannot. "ignore" samples freely, and "refuse" always
    refuses."""
    unreadable: Literal["text", "call"] = "text"
    """The form in which the client gets an unreadable tool call. After "text", most agents end. "call" is a call with
    the raw text as its arguments: most clients then respond with an error for the model to read."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(kind) is Literal and value not in get_args(kind):
                choices = " or ".join(map(repr, get_args(kind)))
                raise ConfigError(f"SessionOptions.{name} is {value!r}; write {choices}")
            if kind in (int, int | None) and value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"SessionOptions.{name} is {value!r}; write a positive whole number")
