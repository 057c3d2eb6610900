"""Envs with two seats."""

from __future__ import annotations

from agentrl import (
    Env,
    InfraError,
    StepResult,
    tool,
)


class Duel(Env):
    """Two seats say numbers in turn; the seat that says the third one wins."""

    seats = ("left", "right")
    deterministic = True

    def reset(self, task):
        self.said = []
        return "Say numbers."

    def observe(self, seat):
        return f"You are {seat}. Said: {' '.join(self.said) or 'nothing'}."

    def step(self, action):
        self.said.append(action.content)
        other = "right" if self.seat == "left" else "left"
        if action.content == "break":
            raise InfraError("the table fell over")
        if len(self.said) == 3:
            return StepResult(done=True, rewards={self.seat: 1.0, other: -1.0})
        return StepResult(next_seat=other, reward=0.25)


class Shop(Env):
    """A seller with a tool and a buyer without one; the buyer ends it."""

    seats = ("buyer", "seller")

    @tool
    async def price(self, item: str) -> str:
        """Look up a price."""
        return f"{item}: 3"

    def tools(self):
        return super().tools() if self.seat == "seller" else []

    def reset(self, task):
        self.heard = "hello"
        self.seat = "seller"
        return ""

    def observe(self, seat):
        return self.heard

    async def step(self, action):
        if action.calls:
            return await self.run_tools(action)
        self.heard = action.content
        return StepResult(done=True) if self.seat == "buyer" else StepResult(next_seat="buyer")

    def score(self, trajectory):
        return 1.0 if self.seat == "seller" else 0.5


class Kept(Duel):
    """As Duel, but with a snapshot."""

    deterministic = False

    def snapshot(self):
        return list(self.said)

    def restore(self, state):
        self.said = state
