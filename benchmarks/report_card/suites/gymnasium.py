"""gymnasium's registry, by agentrl's adapter: an action is a number, or JSON. A family of families.yaml is a suite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import yaml

from agentrl_envs.adapters.games import Game
from agentrl_envs.adapters.gymnasium import Gymnasium, GymnasiumConfig
from benchmarks.report_card.environment import Environment, distinct

PACKAGES: Sequence[str] = ["gymnasium"]
FAMILIES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))


def environments() -> list[Environment]:
    return distinct(registered(spec for spec in gymnasium.registry.values() if spec.namespace is None))


class Family:
    """A suite of families.yaml."""

    def __init__(self, name: str) -> None:
        self.row, self.PACKAGES = FAMILIES[name], FAMILIES[name]["packages"]

    def environments(self) -> list[Environment]:
        row = self.row
        module = import_module(row["imports"])
        if "calls" in row:
            getattr(module, row["calls"])()
        every = gymnasium.registry.values()
        specs = [spec for spec in every if re.match(row["names"], f"{spec.id} {spec.entry_point}")]
        rules = (lambda spec: str(spec.kwargs[row["rules"]])) if "rules" in row else entry_point
        settings = row.get("settings", {})
        return [replace(each, **settings) for each in distinct(registered(specs, row.get("options"), rules))]


def entry_point(spec: Any) -> str:
    return re.sub(r"_?v\d+(?=:|$)", "", f"{spec.entry_point}")


def registered(
    specs: Iterable[Any], options: dict[str, Any] | None = None, rules: Callable[[Any], str] = entry_point
) -> Iterator[Environment]:
    """The environments of gymnasium's registry. Environments with the same `rules` are variants."""
    for spec in specs:
        yield Environment(
            name=spec.id,
            rules=rules(spec),
            open=partial(opened, spec.id, options or {}),
            move=Mover(spec.id, options or {}),
            reads_text=False,
            constants=[str(number) for number in range(4)],
            solved=spec.reward_threshold if spec.reward_threshold is not None else float("inf"),
        )


def opened(name: str, options: dict[str, Any]) -> Game:
    return Gymnasium.open(GymnasiumConfig(name=name, options=options, prompt=""), name)


class Mover:
    """Draws from the action space of the environment."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name, self._options, self._space = name, options, None

    def __call__(self, prompt: str, rng: Random) -> str:
        if self._space is None:
            env = gymnasium.make(self._name, **self._options)
            self._space = env.action_space
            env.close()
        space: Any = self._space
        space.seed(rng.randrange(1 << 31))
        return json.dumps(plain(space, space.sample()))


def plain(space: Any, action: Any) -> Any:
    if type(space).__name__ == "Tuple":
        return [plain(each, part) for each, part in zip(space.spaces, action, strict=True)]
    return int(action) if type(space).__name__ == "Discrete" else space.to_jsonable([action])[0]
