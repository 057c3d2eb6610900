"""TextArena's single-player games.

    pip install textarena
    agentrl train agentrl_envs.adapters.textarena:TextArena --set env_config.name=GuessTheNumber-v0

A turn is the model's text; the game explains the form of a move, such as [5]. The model reads the events since its last
turn, while TextArena by default repeats the whole history in each observation.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from agentrl import ConfigError
from agentrl_envs.adapters.games import Game, GameConfig, GameTurn, TextGame
from agentrl_envs.adapters.suites import refuse_unknown, suite


class TextArena(TextGame):
    """A single-player game of TextArena, played against the game's rules. The reward is the game's reward at its end.

    A game that a limit ends too early scores 0: set `limits.turns` to the game's number of turns.
    """

    config: GameConfig

    @classmethod
    def open(cls, config: GameConfig, name: str) -> Game:
        arena = suite("textarena", "textarena")
        registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
        refuse_unknown("TextArena game", name, registry)
        return _TextArenaGame(arena, name, config.options)


class _TextArenaGame:
    def __init__(self, arena: ModuleType, name: str, options: dict[str, Any]) -> None:
        self._arena, self._name = arena, name
        try:
            self._env = arena.make(name, **options)
        except LookupError as exc:
            raise ConfigError(_missing_corpus(name, exc)) from exc

    def begin(self, seed: int) -> str:
        try:
            self._env.reset(num_players=1, seed=seed)
        except LookupError as exc:
            raise ConfigError(_missing_corpus(self._name, exc)) from exc
        except AssertionError as exc:
            raise ConfigError(f"TextArena's {self._name} cannot be played alone: {exc or 'it asserts more'}") from exc
        self._has_history = self._speaks_history()
        return self._read()

    def answer(self, text: str) -> GameTurn:
        done, info = self._env.step(action=text)
        if not done:
            return GameTurn(self._read())
        rewards, results = self._env.close()
        reason = (results or info or {}).get(0, {}).get("reason")
        return GameTurn(str(reason or ""), float((rewards or {}).get(0, 0.0)), done=True)

    def close(self) -> None:
        """Do nothing: TextArena's games have no resources."""

    def _speaks_history(self) -> bool:
        """Whether observations are the text of the whole history, so that the model can read the new part alone."""
        env = self._env
        while isinstance(env, self._arena.Wrapper):
            if isinstance(env, self._arena.ObservationWrapper):
                return type(env) is self._arena.wrappers.LLMObservationWrapper
            env = env.env
        return True  # a bare game returns what is new, as tuples

    def _read(self) -> str:
        if not self._has_history:
            return str(self._env.get_observation()[1])
        env = self._env
        while isinstance(env, self._arena.Wrapper):
            env = env.env
        kind = self._arena.ObservationType.PLAYER_ACTION
        _, messages = env.get_observation()
        return "\n".join(str(message) for _, message, message_kind in messages if message_kind is not kind)


def _missing_corpus(name: str, exc: LookupError) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if "nltk.download" in line]
    corpus = lines[0].split("'")[1] if lines else ""
    if not corpus:
        return f"TextArena's {name} cannot be made: {type(exc).__name__}: {' '.join(str(exc).split())[:200]}"
    return f"TextArena's {name} needs NLTK's data {corpus!r}; run: python -m nltk.downloader {corpus}"
