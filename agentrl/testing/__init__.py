"""Tools for tests of an Env, which play a script through the real episode loop. The tools need no model, no download
and no torch.

async def test_finds_and_answers() -> None:
    env = Capitals(shared=FakeIndex())
    t = await rollout(env, Task(prompt="Capital of France?"), [call("search", query="France"), "Paris"])
    assert (t.reward, t.stop, len(t.actions)) == (1.0, StopReason.DONE, 2)

`chat_server` serves a model's API. A function returns the model's messages, or an `Answer`, which is any HTTP response.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.testing.playing import call, rollout, tiny_renderer

if TYPE_CHECKING:
    from agentrl.testing.chat_server import Answer, chat_server

__all__ = ["Answer", "call", "chat_server", "rollout", "tiny_renderer"]


def __getattr__(name: str) -> Any:
    """Imports the names of `chat_server` on first access."""
    if name not in ("Answer", "chat_server"):
        raise AttributeError(f"module 'agentrl.testing' has no attribute {name!r}")
    names = vars(import_module("agentrl.testing.chat_server"))
    globals().update({key: names[key] for key in ("Answer", "chat_server")})
    return names[name]
