"""TextGame, the base of the Envs that play the text games of gymnasium, gem and TextArena."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentrl import Action, ConfigError, Env, InfraError, Observation, StepResult, Task, Trajectory
from agentrl._util.loading import cause
from agentrl.types import JSON
from agentrl_envs.adapters.suites import OwnRandom, names_of, seeded

_SILENT = "(The game says nothing.)"


class GameConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str | list[str] = Field(min_length=1)
    """The name of the game in its suite. With several names, tasks use the names in turn, or choose by
    `metadata.name`."""
    options: dict[str, Any] = {}
    """The arguments with which the suite opens the game."""


@dataclass(frozen=True, slots=True)
class GameTurn:
    """A game's response to a turn of the model."""

    text: str
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, JSON] = field(default_factory=dict)


class Game(Protocol):
    """A game of a suite. The methods may block. All calls come from a single thread."""

    def begin(self, seed: int) -> str:
        """Start the game. Returns the player's first observation."""
        ...

    def answer(self, text: str) -> GameTurn:
        """Take the player's text as a move."""
        ...

    def close(self) -> None: ...


class TextGame(Env):
    """Base of Envs that play games. A subclass writes `open`, which opens a game of its suite. The reward is the sum of
    the game's rewards.

    Tasks differ by their seeds, and need no data file. If the suite raises an exception in the middle of a game, the
    environment has failed: the episode is played once more, then left out.
    """

    config: GameConfig
    deterministic = True
    _game: Game | None = None
    _random: OwnRandom

    @classmethod
    def open(cls, config: Any, name: str, /) -> Game:
        """Open the game. May block. Raises ConfigError if the game can never be played."""
        raise NotImplementedError

    @classmethod
    async def share(cls, config: GameConfig) -> None:
        """Start each game once, so that a broken game is reported before the first token."""
        for name in names_of(config.name):
            await asyncio.to_thread(cls._prove, config, name)

    @classmethod
    def _prove(cls, config: GameConfig, name: str) -> None:
        with OwnRandom(0):
            try:
                game = cls.open(config, name)
                try:
                    game.begin(0)
                finally:
                    game.close()
            except ConfigError:
                raise
            except Exception as exc:  # the suite's boundary: any code may run in there
                raise ConfigError(f"{cls.__name__} cannot play {name}: {cause(exc)[:400]}") from exc

    @classmethod
    def tasks(cls, config: GameConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        return seeded(names_of(config.name), split)

    def reset(self, task: Task) -> Observation:
        self._random = OwnRandom(task.seed)
        name = str(task.metadata.get("name") or names_of(self.config.name)[0])
        return self._played(lambda: self._begin(name, task.seed % (1 << 32))) or _SILENT

    def _begin(self, name: str, seed: int) -> str:
        self._game = self.open(self.config, name)
        return self._game.begin(seed)

    def step(self, action: Action) -> StepResult:
        game = self._game
        assert game is not None  # reset made it
        answer: GameTurn = self._played(lambda: game.answer(action.content))
        text = answer.text or ("" if answer.done else _SILENT)
        return StepResult(text, reward=answer.reward, done=answer.done, info=answer.info)

    def score(self, trajectory: Trajectory) -> float:
        return sum(trajectory.step_rewards, 0.0)

    def close(self) -> None:
        if self._game is not None:
            self._played(self._game.close)

    def _played(self, call: Any) -> Any:
        with self._random:
            try:
                return call()
            except (ConfigError, InfraError):
                raise
            except Exception as exc:  # the suite's boundary: its bugs are the world's, not the policy's
                raise InfraError(f"{type(self).__name__}: {cause(exc)[:400]}") from exc
