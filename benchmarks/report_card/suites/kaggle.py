"""kaggle-environments: games for several seats, OpenSpiel's among them. One player takes all seats in turn.

A turn is the JSON of an action, or else a text. The game goes on when each active seat has an action. The reward is the
first seat's: Kaggle's is a total, and a seat that forfeits has none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from math import inf
from random import Random
from typing import Any

import numpy as np
from kaggle_environments import core
from kaggle_environments.utils import structify

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment

PACKAGES = ["kaggle-environments"]


def environments() -> Iterator[Environment]:
    for name in sorted({*core.environments, *core._lazy_environments}):
        with suppress(Exception):  # a package is missing: `Match` raises
            core._resolve_lazy(name)
        reward = core.environments.get(name, {}).get("specification", {}).get("reward") or {}
        bounds = reward.get("enum", [reward.get("minimum", -inf), reward.get("maximum", inf)])
        game, move = partial(Match, name), partial(random_move, name)
        yield Environment(name=name, open=game, move=move, least=min(bounds), most=max(bounds), turns=40)


def new_game(name: str, seed: int) -> Any:
    """A game with as few seats as there are, but two or more. Without a parameter for the seed, the game draws from the
    global generators."""
    parameters = core.environments[name]["specification"]["configuration"] if name in core.environments else {}
    configuration: dict[str, Any] = {key: seed for key in ("seed", "randomSeed") if key in parameters}
    if not configuration:
        random.seed(seed)
        np.random.seed(seed)
    if "includeLegalActions" in parameters:
        configuration["includeLegalActions"] = True
    env = core.make(name, configuration=configuration)
    seats = len(env.configuration.get("agents", ())) or min(n for n in env.specification.agents if n > 1)
    if seats != len(env.state):
        env.reset(seats)
    return env


class Match:
    def __init__(self, name: str) -> None:
        self._name = name
        self.players = len(new_game(name, 1).state)

    def begin(self, seed: int) -> str:
        self._env, self._earned, self._actions = new_game(self._name, seed), 0.0, dict[int, Any]()
        return self._shown()

    def answer(self, text: str) -> GameTurn:
        self._actions[seat := self._seat()] = text
        with suppress(ValueError, RecursionError):
            self._actions[seat] = json.loads(text)
        if self._seat() >= 0:
            return GameTurn(self._shown())
        self._env.step([self._actions.get(seat) for seat in range(self.players)])
        self._actions = {}
        total = self._env.state[0].reward
        reward = 0.0 if total is None else total - self._earned
        self._earned += reward
        return GameTurn("The game ends." if self._env.done else self._shown(), reward, self._env.done)

    def close(self) -> None:
        """Do nothing: the games have no resources."""

    def _seat(self) -> int:
        """The seat whose turn it is; -1 if all have an action."""
        active = (seat for seat, state in enumerate(self._env.state) if state.status == "ACTIVE")
        return next((seat for seat in active if seat not in self._actions), -1)

    def _shown(self) -> str:
        return json.dumps(self._env._Environment__get_shared_state(self._seat()).observation, default=str)


example = cache(partial(new_game, seed=1))


def random_move(name: str, prompt: str, rng: Random) -> str:
    """The move of the random agent that the environment brings along, or else the default action."""
    env = example(name)
    random.seed(rng.random())
    np.random.seed(rng.randrange(1 << 31))
    agent = next((env.agents[each] for each in ("random", "random_agent") if each in (env.agents or ())), None)
    inputs = [structify(json.loads(prompt)), structify(env.configuration)]  # an agent may change both
    action = agent(*inputs[: agent.__code__.co_argcount]) if agent else env.specification.action.get("default")
    return json.dumps(action, default=lambda value: value.tolist())
