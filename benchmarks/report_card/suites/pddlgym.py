"""PDDLGym's domains of planning: an action is a literal. A text that is no legal action ends the episode."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import gym
import pddlgym

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment, distinct, legal_action

PACKAGES = ["pddlgym"]


def environments() -> list[Environment]:
    """Domains of the same name differ in their problems, or in the form of the actions."""
    specs = [spec for spec in gym.envs.registry.values() if spec.entry_point == "pddlgym.core:PDDLEnv"]
    environment = partial(Environment, move=legal_action, least=0.0, most=1.0, reads_text=False)
    names = [(spec.id, _domain(spec.kwargs["domain_file"])) for spec in specs if not spec.id.endswith("Test-v0")]
    return distinct(environment(name=name, rules=domain, open=partial(Plan, name)) for name, domain in names)


def _domain(file: str) -> str:
    """The domain's name without a number at the end."""
    match = re.search(r"\(domain\s+([^\s)]+?)\d*\s*\)", Path(file).read_text(), re.IGNORECASE)
    return match[1].lower() if match else file


class Plan:
    """A problem of a domain, chosen by the seed. The reward is 1 at the goal."""

    def __init__(self, name: str) -> None:
        self._env = pddlgym.make(name)

    def begin(self, seed: int) -> str:
        self._state, _ = self._env.reset(seed=seed)
        return self._shown()

    def answer(self, text: str) -> GameTurn:
        if text not in self._actions:
            return GameTurn("That is no legal action.", done=True)
        self._state, reward, done, cut, _ = self._env.step(self._actions[text])
        return GameTurn(self._shown(), reward, bool(done or cut))

    def close(self) -> None:
        self._env.close()

    def _shown(self) -> str:
        literals = self._env.action_space.all_ground_literals(self._state)
        self._actions = {"".join(str(literal).split()): literal for literal in sorted(literals)}
        state = " ".join(sorted(map(str, self._state.literals)))
        return f"{state}\nGoal: {self._state.goal}\nLegal actions: {' '.join(self._actions)}"
