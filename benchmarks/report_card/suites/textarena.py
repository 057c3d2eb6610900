"""TextArena: games for one player and for several. One player takes the turns of all seats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from inspect import signature
from random import Random

import textarena
from textarena.envs.registration import ENV_REGISTRY

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment, distinct

PACKAGES = ["textarena"]
PLAYERS = range(1, 16)
_SHOWN = re.compile(r"\[[^\[\]\n]{1,24}\]")


def environments() -> list[Environment]:
    return distinct(_registered())


def _registered() -> Iterator[Environment]:
    for name, spec in ENV_REGISTRY.items():
        if not name.endswith(("-train", "-raw")):  # these wrap the observations of the others in another way
            rules = str(getattr(spec, "entry_point", name))
            yield Environment(name=name, open=partial(ArenaGame, name), move=move, rules=rules, least=-1.0, most=1.0)


class ArenaGame:
    """A game for the smallest number of players that the game allows. The reward is that of the first player."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._env = textarena.make(name)
        self.players = 0

    def begin(self, seed: int) -> str:
        refusal: Exception | None = None
        for players in [self.players] if self.players else (*self._usual(), *PLAYERS):
            try:
                self._env.reset(num_players=players, seed=seed)
                break
            except Exception as exc:  # noqa: BLE001 - each game refuses in its own way
                refusal = refusal or exc
                self._env = textarena.make(self._name)
        else:
            assert refusal is not None  # a number of players was tried
            raise refusal
        self.players = players
        return self._read()

    def _usual(self) -> list[int]:
        """The number of players that the game's `reset` has as its default, if any."""
        env = self._env
        while isinstance(env, textarena.Wrapper):
            env = env.env
        default = signature(env.reset).parameters["num_players"].default
        number = getattr(env, "default_num_players", None) if default is None else default
        return [number] if isinstance(number, int) else []

    def answer(self, text: str) -> GameTurn:
        done, info = self._env.step(action=text)
        if not done:
            return GameTurn(self._read())
        rewards, results = self._env.close()
        reason = (results or info or {}).get(0, {}).get("reason")
        return GameTurn(str(reason), (rewards or {}).get(0, 0.0), done=True)

    def close(self) -> None:
        """Do nothing: TextArena's games have no resources."""

    def _read(self) -> str:
        player, observed = self._env.get_observation()
        return f"{player}: {observed}"


def move(prompt: str, rng: Random) -> str:
    """A move in a form that the prompt shows, with other numbers at times."""
    shown = _SHOWN.findall(prompt) or ["[1]"]
    text = rng.choice(shown)
    if rng.random() < 0.5:
        text = re.sub(r"\d+", lambda number: str(rng.randint(0, 2 * int(number[0][:9]) + 1) % 1000), text)
    return text
