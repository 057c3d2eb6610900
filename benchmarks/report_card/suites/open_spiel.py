"""OpenSpiel's games. One player takes all seats, and a seeded generator draws what chance draws.

An action is a number of OpenSpiel's list of legal actions. A text that is no legal action ends the episode: OpenSpiel
would end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pyspiel

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment, legal_action

PACKAGES = ["open-spiel"]


def environments() -> Iterator[Environment]:
    for kind in pyspiel.registered_games():
        if kind.default_loadable and kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL:
            name, game = kind.short_name, pyspiel.load_game(kind.short_name)
            least, most, opens = game.min_utility(), game.max_utility(), partial(Spiel, name)
            one = partial(Environment, move=legal_action, reads_text=False, turns=60)
            yield one(name=name, open=opens, least=least, most=most)


class Spiel:
    """A game, whose reward is the first player's return."""

    def __init__(self, name: str) -> None:
        self._game = pyspiel.load_game(name)

    def begin(self, seed: int) -> str:
        self._rng, self._state, self._earned = Random(seed), self._game.new_initial_state(), 0.0
        return self._shown()

    def answer(self, text: str) -> GameTurn:
        action = int(text) if text.isdecimal() else -1
        if action not in self._state.legal_actions():
            return GameTurn("That is no legal action.", done=True)
        self._state.apply_action(action)
        shown, total = self._shown(), float(self._state.returns()[0])
        reward, self._earned = total - self._earned, total
        return GameTurn(shown, reward, self._state.is_terminal())

    def close(self) -> None:
        """Do nothing: the games have no resources."""

    def _shown(self) -> str:
        """Draw for chance, then show the state to the player whose turn it is."""
        state: Any = self._state
        while state.is_chance_node():
            outcomes, weights = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self._rng.choices(outcomes, weights)[0])
        if state.is_terminal():
            return f"The game ends. Returns: {state.returns()}"
        return f"{state}\nLegal actions: {' '.join(map(str, state.legal_actions()))}"
