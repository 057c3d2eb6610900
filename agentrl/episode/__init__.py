"""One episode: a Conversation and an Env in turns, its options, its end, and how it is parked and resumed."""

from typing import Any

from agentrl._util.moved import old_name


def __getattr__(name: str) -> Any:
    return old_name("agentrl.episode.run", name)
