"""Serve an environment for each kind of action with openenv's server. Needs openenv.

python server.py 8000 8001 8002 8003
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import Any, Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str = ""
    message_length: int = 0


class Echo(Environment):
    """The environment that `openenv init` writes. It rewards long messages, and never ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> EchoObservation:
        self._steps = 0
        return EchoObservation(echoed_message="ready!", reward=0.0)

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        self._steps += 1
        length = len(action.message)
        return EchoObservation(echoed_message=action.message, message_length=length, reward=length * 0.1)

    @property
    def state(self) -> State:
        return State(step_count=self._steps)


class GuessAction(Action):
    guess: str
    note: str = ""


class GuessObservation(Observation):
    text: str = ""


class Guess(Echo):
    """Guess a number from 1 to 9, with a text."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> GuessObservation:
        self._secret = Random(seed).randint(1, 9)
        return GuessObservation(text="Guess a number from 1 to 9.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> GuessObservation:
        if not action.guess.isdigit():
            return GuessObservation(text="That is no number.", reward=-0.1)
        right = int(action.guess) == self._secret
        return GuessObservation(text="Right!" if right else "Wrong.", reward=float(right), done=right)


class MoveAction(Action):
    direction: Literal["up", "down"]
    steps: int = 1


class MoveObservation(Observation):
    position: int = 0
    goal: int = 0


class Move(Echo):
    """Reach a goal, with actions of several fields."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> MoveObservation:
        self._at, self._goal = 0, Random(seed).randint(-3, 3) or 4
        return MoveObservation(goal=self._goal)

    def step(self, action: MoveAction, timeout_s: float | None = None, **_: Any) -> MoveObservation:
        self._at += action.steps if action.direction == "up" else -action.steps
        there = self._at == self._goal
        return MoveObservation(position=self._at, goal=self._goal, reward=float(there), done=there)


class Shop(MCPEnvironment):
    """A shop with two MCP tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("shop")
        self._sold = 0

        @mcp.tool
        def price(item: str) -> int:
            """The price of an item."""
            if item == "air":
                raise ValueError("air is free")
            return len(item)

        @mcp.tool
        def sell(item: str, count: int = 1) -> str:
            """Sell some of an item."""
            self._sold += count
            return f"sold {self._sold}"

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._sold = 0
        return Observation(reward=0.0)

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=timeout_s, **more)
        observation.reward, observation.done = self._sold / 10, self._sold >= 3
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(metadata={"error": "use tools"})

    @property
    def state(self) -> State:
        return State(step_count=self._sold)


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "echo": (Echo, EchoAction, EchoObservation),
    "guess": (Guess, GuessAction, GuessObservation),
    "move": (Move, MoveAction, MoveObservation),
    "shop": (Shop, Action, CallToolObservation),
}


async def serve(ports: list[int]) -> None:
    """Serve each kind of environment at its port, with two sessions for each."""
    servers = []
    for (name, kind), port in zip(KINDS.items(), ports, strict=True):
        app = create_app(*kind, env_name=name, max_concurrent_envs=2)
        servers.append(uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical")))
    await asyncio.gather(*(server.serve() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve([int(port) for port in sys.argv[1:]]))
