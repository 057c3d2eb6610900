"""Tic-tac-toe for two seats. The same model plays both seats, and is trained in both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from agentrl import Action, Env, StepResult, Task, Trajectory

LINES = ("123", "456", "789", "147", "258", "369", "159", "357")


class TicTacToe(Env):
    """Squares have the numbers 1 to 9. A move that is not a free square loses at once."""

    seats = ("x", "o")
    deterministic = True  # so an aborted game, or a branch of one, is replayed

    @classmethod
    def tasks(cls, config: object, split: Literal["train", "eval"]) -> Iterable[Task]:
        """The games, all with the same start. Only the moves differ."""
        return (Task(id=f"{split}-{number}") for number in range(10_000))

    def reset(self, task: Task) -> str:
        self.squares: dict[str, str] = {}
        return ""

    def observe(self, seat: str) -> str:
        other = "o" if seat == "x" else "x"
        return f"me {self._of(seat)} you {self._of(other)} free {''.join(self._free())}"

    def step(self, action: Action) -> StepResult:
        seat, other, square = self.seat, "o" if self.seat == "x" else "x", action.content
        if square not in self._free():
            return StepResult(done=True, rewards={seat: -1.0, other: 0.0}, info={"end": f"{seat} broke the rules"})
        self.squares[square] = seat
        if any(all(self.squares.get(each) == seat for each in line) for line in LINES):
            return StepResult(done=True, rewards={seat: 1.0, other: -1.0}, info={"end": f"{seat} won"})
        if not self._free():
            return StepResult(done=True, rewards={seat: 0.0, other: 0.0}, info={"end": "draw"})
        return StepResult(next_seat=other)

    def score(self, trajectory: Trajectory) -> float:
        """The reward of a seat. A seat that exceeds a limit loses; otherwise a turn without an end would be better than
        a loss."""
        if "ended_by" in trajectory.info:
            return -1.0 if trajectory.info["ended_by"] == self.seat else 0.0
        return sum(trajectory.step_rewards)

    def _of(self, seat: str) -> str:
        return "".join(sorted(square for square, by in self.squares.items() if by == seat)) or "-"

    def _free(self) -> list[str]:
        return [square for square in "123456789" if square not in self.squares]
