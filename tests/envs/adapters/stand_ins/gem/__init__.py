"""gem 0.1: `make(id, **kwargs)`; `reset(seed)` gives (text, info), `step(text)` five values."""

import logging
import random

from gem.envs.registration import ENV_REGISTRY

logging.basicConfig(level=logging.INFO, force=True)


class Guess:
    def __init__(self, most=10):
        print("gem prints")
        self.most = most

    def reset(self, seed=None):
        random.seed(seed)
        self.secret = random.randint(1, self.most)
        return "Guess", {"suffix": "Enter \\boxed{}."}

    def step(self, action):
        if action == "crash":
            raise IndexError("list index out of range")
        self.secret = random.randint(1, self.most)  # a new one each turn, of the global numbers
        right = action == f"\\boxed{{{self.secret}}}"
        return f"It was {self.secret}", float(right), right, action == "late", {"suffix": "Again."}


def make(env_id, **kwargs):
    return ENV_REGISTRY[env_id](**kwargs)


ENV_REGISTRY["game:Guess-v0"] = Guess
