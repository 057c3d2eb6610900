"""chuk-puzzles-gym's logic puzzles, each in its easy size. A turn is a command, such as `place 1 5 7`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from random import Random

from chuk_puzzles_gym.games import AVAILABLE_GAMES
from chuk_puzzles_gym.gym_env import PuzzleEnv

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment

PACKAGES = ["chuk-puzzles-gym"]
LOOP = asyncio.new_event_loop()


def environments() -> Iterator[Environment]:
    for name in AVAILABLE_GAMES:
        yield Environment(name=name, open=partial(Puzzle, name), move=command, turns=40)


class Puzzle:
    """A puzzle, whose commands are shown with each observation."""

    def __init__(self, name: str) -> None:
        self._env = PuzzleEnv(name)

    def begin(self, seed: int) -> str:
        observed, _ = LOOP.run_until_complete(self._env.reset(seed=seed))
        return f"{self._env.game.get_rules()}\n{observed['render']}\n{self._env.game.get_commands()}"

    def answer(self, text: str) -> GameTurn:
        observed, reward, done, cut, info = LOOP.run_until_complete(self._env.step(text))
        message = info.get("hint") or info.get("message") or info.get("error")
        return GameTurn(f"{message}\n{observed['render']}\n{self._env.game.get_commands()}", reward, done or cut)

    def close(self) -> None:
        self._env.close()


def command(prompt: str, rng: Random) -> str:
    """A command that the prompt shows, with numbers for its names, or at times words of the prompt."""
    forms = re.findall(r"^ +(hint|\w+ .*<.*?)(?: +- .*)?$", prompt, re.MULTILINE)
    words = [*"123456" * 30, *re.findall(r"\w+", prompt)[:99]]
    return re.sub(r"<[^>]*>|\.\.\.", lambda name: rng.choice(words), rng.choice(forms))
