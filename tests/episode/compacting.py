"""A corridor that is longer than the context, a player without a memory of its own, and an oracle of segments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl import Env, StepResult, Task, tool
from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.env.summaries import REQUEST
from agentrl.testing import call

ROOMS = 59
TASK = Task(prompt="Walk to the end of the corridor, and count the coins.", label=0, seed=1)
TWELVE = {"turns": ROOMS + 1, "context": 780, "compact_at": 560}
"""Limits in which about twelve turns fit into the context."""


def coins_in(room: int) -> int:
    return (7 * room) % 10


class Corridor(Env):
    """Each room has coins. The answer after the last room is the sum."""

    deterministic = True
    rooms = ROOMS

    def reset(self, task: Task) -> Any:
        self.room = 0
        return task.prompt

    @tool
    def walk(self) -> str:
        """Walk to the next room."""
        self.room += 1
        end = " The corridor ends." if self.room == self.rooms else ""
        return f"Room {self.room}: {coins_in(self.room)} coins.{end}"

    def score(self, trajectory: Any) -> float:
        return float(trajectory.answer == str(sum(map(coins_in, range(1, self.rooms + 1)))))


class Saved(Corridor):
    deterministic = False

    def snapshot(self) -> int:
        return self.room

    def restore(self, state: int) -> None:
        self.room = state


class Open(Corridor):
    deterministic = False


class Short(Corridor):
    """Long enough for two summaries."""

    rooms = 12


class Numbered(Corridor):
    """The reward is the sample's number, which a host writes into the metadata."""

    def score(self, trajectory: Any) -> float:
        return super().score(trajectory) * (1.0 + self.task.metadata["number"])


class ShortSaved(Saved):
    rooms = 12


class ShortOpen(Open):
    rooms = 12


class Words(Env):
    """The same without tools: each text is a step, and the observation continues the conversation of the user."""

    def reset(self, task: Task) -> str:
        self.room = 0
        return task.prompt

    def step(self, action: Any) -> StepResult:
        if action.content != "walk":
            return StepResult(done=True, reward=float(action.content))
        self.room += 1
        return StepResult(f"Room {self.room}: {coins_in(self.room)} coins.{' The corridor ends.' * (self.room == 12)}")


def next_turn(text: str) -> Any:
    """The turn after a conversation. Everything that the player knows is in the text."""
    sums = re.findall(r"I have (\d+) coins", text)
    after = text.rpartition("I have ")[2] if sums else text
    total = int(sums[-1]) + sum(map(int, re.findall(r": (\d+) coins", after))) if sums else None
    if total is None:
        total = sum(map(int, re.findall(r": (\d+) coins", text)))
    if text.rstrip().removesuffix("<|im_start|>assistant").rstrip().endswith(f"{REQUEST}<|im_end|>"):
        return f"I have {total} coins." + (" The corridor ends." if "corridor ends" in text else "")
    return str(total) if "The corridor ends." in text else call("walk")


class Walker(ScriptedEngine):
    """Plays `next_turn` for any number of episodes, continues a turn that was cut, and logs its requests."""

    def __init__(self, renderer: Any, say: Any = next_turn, **options: Any) -> None:
        super().__init__(self._turn, renderer, **options)
        self.renderer, self.say = renderer, say
        self.log: list[tuple[list[int], list[int], list[float]]] = []
        """For each request: the input ids, the sampled tokens, their log-probs."""
        self.by_session: dict[str, list[tuple[list[int], list[int], list[float]]]] = {}

    def _turn(self, ids: Sequence[int]) -> Generation:
        text = self.renderer.decode(ids)
        prompt, _, begun = text.rpartition("<|im_start|>assistant\n")
        said = self.say(f"{prompt}<|im_start|>assistant\n")
        tokens = self.renderer.encode({"role": "assistant", "content": said} if isinstance(said, str) else said)
        start = len(self.renderer.encode({"role": "assistant", "content": begun})) - 2 if begun else 0
        start = next((k for k in range(start + 3, 0, -1) if list(ids[-k:]) == list(tokens[:k])), 0) if begun else 0
        rest = tokens[start:]
        return Generation(rest, [scripted_log_prob(token) for token in rest], "stop")

    async def generate(self, input_ids: Any, sampling_params: Any, **request: Any) -> Generation:
        generation = await super().generate(input_ids, sampling_params, **request)
        self.log.append(([*input_ids], [*generation.tokens], [*generation.log_probs]))
        self.by_session.setdefault(request.get("session_id", ""), []).append(self.log[-1])
        return generation


@dataclass
class TrainedRow:
    """A sequence that should be trained."""

    prompt: list[int]
    ids: list[int]
    mask: list[int] = field(default_factory=list)
    """Of the response."""
    log_probs: list[float] = field(default_factory=list)


def oracle(log: Sequence[tuple[Sequence[int], Sequence[int], Sequence[float]]]) -> list[TrainedRow]:
    """The rows that the requests of one episode should become. It reads nothing but the engine's log.

    A request whose input begins with all tokens of the row before continues the row. Any other request begins a row.
    """
    rows: list[TrainedRow] = []
    for input_ids, sampled, log_probs in log:
        if not rows or [*input_ids[: len(rows[-1].ids)]] != rows[-1].ids:
            rows.append(TrainedRow([*input_ids], [*input_ids]))
        row = rows[-1]
        between = len(input_ids) - len(row.ids)
        row.mask += [0] * between + [1] * len(sampled)
        row.log_probs += [0.0] * between + [*log_probs]
        row.ids = [*input_ids, *sampled]
    return rows
