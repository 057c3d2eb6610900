"""Plays small agents through the real gateway with the real openai client. A script has the model's place.

An agent is a coroutine function of an `Actor`. It asks by `actor.ask(...)`, and names the reply that it will get.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from openai import AsyncOpenAI

from agentrl import AgentEnv, Endpoint, Limits, SessionOptions, Task, Trajectory
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.episode.run import run_episode
from agentrl.render.base import Renderer
from agentrl.testing import tiny_renderer
from agentrl.types import Message

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}


@cache
def renderer() -> Renderer:
    return tiny_renderer()


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class Actor:
    """An agent's client, and the model's replies to it."""

    def __init__(self) -> None:
        self.client: AsyncOpenAI
        self.endpoint: Endpoint
        self.task: Task
        self.script: list[Any] = []
        """Replies to requests whose reply was not named, in order."""
        self._named: list[tuple[list[str], Any]] = []
        """The texts of a request, and its reply."""

    def names(self, texts: Sequence[str], reply: Any) -> None:
        """The next request with these texts gets this reply."""
        self._named.append(([text.strip() for text in texts if text.strip()], reply))

    async def asks(self, *messages: Message, reply: Any, tools: Sequence[Any] = (), **more: Any) -> Any:
        """The assistant's message, from one request."""
        self.names([str(message.get("content") or "") for message in messages], reply)
        fields = {"tools": [*tools], **more} if tools else more
        completion = await self.client.chat.completions.create(model="any", messages=[*messages], **fields)
        return completion.choices[0].message

    async def ask(self, *messages: Message, reply: Any, **more: Any) -> str:
        """The assistant's text, from one request."""
        return (await self.asks(*messages, reply=reply, **more)).content or ""

    def plays(self, ids: Sequence[int]) -> Any:
        """The reply to a prompt: the one that was named for most of its text, or else the script's next one."""
        prompt = renderer().decode(ids)
        fitting = [named for named in self._named if all(text in prompt for text in named[0])]
        if not fitting:
            return self.script.pop(0)
        best = max(fitting, key=lambda named: sum(map(len, named[0])))
        self._named.remove(best)
        return best[1]


Acting = Callable[[Actor], Awaitable[Any]]


async def act(
    agent: Acting, *, session: SessionOptions | None = None, limits: Limits | None = None, prompt: str = "Which city?"
) -> Trajectory:
    """One episode of the agent. Every sampled token is checked to be in one segment."""
    actor = Actor()

    class Acted(AgentEnv):
        async def run(self, task: Task, endpoint: Endpoint) -> Any:
            actor.endpoint, actor.task = endpoint, task
            async with AsyncOpenAI(base_url=endpoint.openai, api_key=endpoint.key, max_retries=0) as actor.client:
                return await agent(actor)

        def score(self, trajectory: Trajectory) -> float:
            return 1.0

    Acted.session = session or SessionOptions()
    Acted.__name__ = agent.__name__
    engine = ScriptedEngine(actor.plays, renderer())
    options = EpisodeOptions(limits=limits or Limits(turns=64))
    played = await run_episode(Acted(), Task(prompt=prompt), engine=engine, renderer=renderer(), options=options)
    if played.failure is not None and played.failure.kind == "bug":
        raise AssertionError(f"{played.failure.error}\n{played.failure.traceback}")
    played.verify()
    return played
