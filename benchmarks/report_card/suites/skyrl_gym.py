"""skyrl-gym's environments that need no data set of the hub, on rows of ours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import skyrl_gym

from agentrl_envs.adapters.games import GameTurn
from benchmarks.report_card.environment import Environment

PACKAGES = ["skyrl-gym"]
FORMS = {"gsm8k": "#### {}", "gsm8k_multi_turn": "#### {}", "aime": "Answer: \\boxed{{{}}}"}


def environments() -> Iterator[Environment]:
    for name, form in FORMS.items():
        yield Environment(
            name=name,
            open=partial(Sums, name),
            move=lambda prompt, rng, form=form: form.format(rng.randint(0, 99)),
            gold=lambda seed, form=form: [form.format(_sum(seed)[1])],
            least=-1.0,
            most=1.0,
            turns=5,
            seeds=20,
        )


def _sum(seed: int) -> tuple[str, int]:
    first, second = Random(seed).choices(range(100), k=2)
    return f"{first} + {second}?", first + second


class Sums:
    """Sums of two numbers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, seed: int) -> str:
        question, answer = _sum(seed)
        truth = {"ground_truth": str(answer)}
        extras: dict[str, Any] = {"reward_spec": truth, "reward_model": truth, "max_turns": 5, "extra_info": {}}
        self._env = skyrl_gym.make(self._name, env_config={}, extras=extras)
        messages, _ = self._env.init([{"role": "user", "content": question}])
        return str(messages[-1]["content"])

    def answer(self, text: str) -> GameTurn:
        output = self._env.step(text)
        shown = "\n".join(str(message["content"]) for message in output["observations"])
        return GameTurn(shown, output["reward"], bool(output["done"]))

    def close(self) -> None:
        self._env.close()
