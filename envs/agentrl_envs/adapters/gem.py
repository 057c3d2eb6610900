r"""gem's environments: games, and questions with graders.

    pip install gem-llm        # in a separate environment: it pins old versions of other packages
    agentrl train agentrl_envs.adapters.gem:Gem --set env_config.name=game:GuessTheNumber-v0-easy

A turn is the model's text, with the move in \boxed{}, as the first observation explains.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from agentrl import ConfigError
from agentrl_envs.adapters.games import Game, GameConfig, GameTurn, TextGame
from agentrl_envs.adapters.suites import refuse_unknown, suite

_NOTHING_MORE = "<｜TERMINAL_STATE｜>"
"""gem's observation after the last turn of a question."""


class Gem(TextGame):
    """An environment of gem. The reward is the sum of the steps' rewards."""

    config: GameConfig

    @classmethod
    def open(cls, config: GameConfig, name: str) -> Game:
        gem = suite("gem", "gem-llm")
        refuse_unknown("environment of gem", name, importlib.import_module("gem.envs.registration").ENV_REGISTRY)
        return _GemGame(name, gem.make(name, **config.options))


class _GemGame:
    def __init__(self, name: str, env: Any) -> None:
        self._name, self._env = name, env

    def begin(self, seed: int) -> str:
        return self._shown(*self._env.reset(seed=seed))

    def answer(self, text: str) -> GameTurn:
        observed, reward, terminated, truncated, info = self._env.step(text)
        done = bool(terminated or truncated)
        extra = {"truncated": True} if truncated and not terminated else {}
        last = "" if observed == _NOTHING_MORE else str(observed)
        return GameTurn(last if done else self._shown(observed, info), float(reward), done, extra)

    def close(self) -> None:
        """Do nothing: most of gem's environments have no resources and no `close`."""
        getattr(self._env, "close", lambda: None)()

    def _shown(self, observed: object, info: Mapping[str, Any]) -> str:
        """The observation without the prefix and suffix of gem's wrapper."""
        if not isinstance(observed, str):
            kind = type(observed).__name__
            raise ConfigError(f"gem's {self._name} shows {kind}, not text; an adapter for text cannot play it")
        between = "" if observed.endswith("\n") or "suffix" not in info else "\n"
        return f"{info.get('prefix', '')}{observed}{between}{info.get('suffix', '')}"
