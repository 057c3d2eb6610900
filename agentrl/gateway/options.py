"""How a session decides where there is a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How the replies of an agent's session become tokens to train on. The defaults train everything, once."""

    echo: Literal["stored", "as_sent"] = "stored"
    """A client that tells a reply in another way than it was sampled: keep what was sampled, or begin a branch with
    the client's text."""
    dropped: Literal["train", "mask"] = "train"
    """Replies that the agent dropped from its history, and asked again."""
    side: Literal["train", "mask"] = "train"
    """Other conversations within the session: sub-agents, titles, summaries."""
    sticky_tools: bool = False
    """A request without tools behind a known history keeps the tools in its prompt, so that the engine's prefix cache
    holds."""
    most_replies: int = 8
    """The largest `n` of a request."""
