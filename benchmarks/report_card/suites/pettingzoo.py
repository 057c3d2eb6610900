"""PettingZoo's classic games, and mpe2's particles. One player takes all seats in turn.

An action is a number. A number that the game's mask forbids ends the episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment, legal_action

PACKAGES = ["pettingzoo"]
CLASSIC = (
    *("chess_v6", "connect_four_v3", "go_v5", "hanabi_v5", "leduc_holdem_v4", "rps_v2"),
    *("texas_holdem_no_limit_v6", "texas_holdem_v4", "tictactoe_v3"),
)
PARTICLES = (
    *("simple_v3", "simple_adversary_v3", "simple_crypto_v3", "simple_push_v3", "simple_reference_v3"),
    *("simple_speaker_listener_v4", "simple_spread_v3", "simple_tag_v3", "simple_world_comm_v3"),
)


def environments() -> Iterator[Environment]:
    for package, names in (("pettingzoo.classic", CLASSIC), ("mpe2", PARTICLES)):
        for name in names:
            opens, one = partial(Seats, package, name), partial(Environment, reads_text=False, turns=60)
            yield one(name=name, open=opens, move=legal_action)


class Seats:
    """A game of several agents. The reward is the first agent's."""

    def __init__(self, package: str, name: str) -> None:
        self._env = import_module(f"{package}.{name}").env()

    def begin(self, seed: int) -> str:
        self._env.reset(seed=seed)
        self._first, self._earned = self._env.possible_agents[0], 0.0
        return self._shown()

    def answer(self, text: str) -> GameTurn:
        env = self._env
        if not text.isdecimal() or int(text) not in self._legal():
            return GameTurn("That is no legal action.", done=True)
        env.step(int(text))
        reward = float(env.rewards.get(self._first, 0.0))
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        return GameTurn(self._shown() if env.agents else "The game ends.", reward, not env.agents)

    def close(self) -> None:
        self._env.close()

    def _legal(self) -> list[int]:
        env: Any = self._env
        observed = env.observe(env.agent_selection)
        if isinstance(observed, dict) and "action_mask" in observed:
            return [int(number) for number in np.flatnonzero(observed["action_mask"])]
        return [*range(int(env.action_space(env.agent_selection).n))]

    def _shown(self) -> str:
        env: Any = self._env
        observed = env.observe(env.agent_selection)
        seen = observed["observation"] if isinstance(observed, dict) else observed
        numbers = np.asarray(seen, dtype=float).round(5).ravel().tolist()
        return f"{env.agent_selection}: {numbers}\nLegal actions: {' '.join(map(str, self._legal()))}"
