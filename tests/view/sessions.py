"""An agent's session with a main line, a dropped reply and a conversation of a helper."""

from __future__ import annotations

from agentrl import Trajectory
from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Entry
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.testing import call
from tests.gateway.client import ASK, SYSTEM, Talk, results, told

HELPER = Entry("system", "You are a helper: do what you are told.")


async def session_trajectory() -> Trajectory:
    left = [call("find", what="lamp"), "A helper's answer.", "Dropped.", "It is Paris."]
    renderer = load_renderer(load_tokenizer("tiny"))
    talk = Talk(renderer, lambda ids: left.pop(0), options=SessionOptions(side="mask", dropped="mask"))
    first = await talk.says(SYSTEM, ASK)
    line = [SYSTEM, ASK, told(first), *results(first, "not there")]
    await talk.says(HELPER, Entry("user", "Help."), tools=())
    await talk.says(*line)
    await talk.says(*line, Entry("user", "Sure?"))
    return talk.end()
