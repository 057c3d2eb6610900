"""An Env for a real engine under random weights: three turns, whatever the model says."""

from __future__ import annotations

from agentrl import Env, StepResult, Trajectory

TURNS = 3
FINISHED: list[Trajectory] = []
"""Every scored episode: what it knows of single turns, a Sample does not."""


class Chat(Env):
    def reset(self, task):
        self.turns = 0
        return task.prompt

    async def step(self, action):
        self.turns += 1
        return StepResult(f"Is that all? You have said {len(action.text)} characters.", done=self.turns == TURNS)

    def score(self, trajectory: Trajectory) -> float:
        FINISHED.append(trajectory)
        return float(self.turns)
