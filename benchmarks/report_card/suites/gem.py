r"""gem's games. Its questions need data sets of a hub, and its copies of reasoning-gym's data sets are left out.

A turn is the model's text, with the move in \boxed{}.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY

from agentrl_envs.adapters.games import Game
from agentrl_envs.adapters.gem import GameConfig, Gem
from benchmarks.report_card.environment import Environment, distinct

PACKAGES = ["gem-llm"]


def environments() -> list[Environment]:
    return distinct(reversed([*_registered()]))  # the easy games of each kind come first


def _registered() -> Iterator[Environment]:
    for name, spec in ENV_REGISTRY.items():
        if name.startswith("game:"):
            rules, opens = str(spec.entry_point), partial(opened, name)
            yield Environment(name=name, rules=rules, open=opens, move=Mover(name), least=-1.0, most=1.0)


def opened(name: str) -> Game:
    return Gem.open(GameConfig(name=name), name)


class Mover:
    """gem's random actions, or a boxed number if a game has no random actions."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._env: Any = None

    def __call__(self, prompt: str, rng: Random) -> str:
        if self._env is None:
            self._env = gem.make(self._name)
            self._env.reset(seed=1)
        try:
            return str(self._env.sample_random_action())
        except (NotImplementedError, AttributeError):
            return f"\\boxed{{{rng.randint(0, 9)}}}"
