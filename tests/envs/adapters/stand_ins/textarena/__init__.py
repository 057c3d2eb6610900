"""TextArena 0.7: `make(id)` wraps a game; `get_observation()`, `step(action=)`, and rewards from `close()`."""

import random
from enum import Enum
from types import SimpleNamespace

from textarena.envs.registration import ENV_REGISTRY


class ObservationType(Enum):
    PROMPT = 1
    PLAYER_ACTION = 2
    GAME_MESSAGE = 3


class Wrapper:
    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


class ObservationWrapper(Wrapper):
    pass


class LLMObservationWrapper(ObservationWrapper):
    history = ""

    def get_observation(self):
        player, messages = self.env.get_observation()
        self.history += "".join(f"\n[GAME] {text}" for _, text, _ in messages)
        return player, self.history


class Brackets(Wrapper):
    def step(self, action):
        return self.env.step(action if "[" in action else f"[{action}]")


class Guess:
    def __init__(self, corpus=True):
        if not corpus:
            raise LookupError("\n  Resource words not found.\n  >>> nltk.download('words')\n")

    def reset(self, num_players, seed=None):
        assert num_players == self.players, f"The number of players has to be {self.players}"
        random.seed(seed)
        self.secret, self.new, self.turns = random.randint(1, 9), [(-1, "Guess", ObservationType.PROMPT)], 0
        self.result = None

    players = 1

    def get_observation(self):
        new, self.new = self.new, []
        return 0, new

    def step(self, action):
        self.new.append((0, action, ObservationType.PLAYER_ACTION))
        self.turns += 1
        if action == f"[{self.secret}]":
            self.result = 1.0 / self.turns
            return True, {}
        self.new.append((-1, f"Not {action}.", ObservationType.GAME_MESSAGE))
        return False, {}

    def close(self):
        return {0: self.result}, {0: {"reason": "You found it."}}


class Two(Guess):
    players = 2


def make(env_id, **kwargs):
    game = ENV_REGISTRY[env_id](**kwargs)
    return game if env_id.endswith("-raw") else Brackets(LLMObservationWrapper(game))


wrappers = SimpleNamespace(LLMObservationWrapper=LLMObservationWrapper)
ENV_REGISTRY.update({"Guess-v0": Guess, "Guess-v0-raw": Guess, "Two-v0": Two})
