"""Play Gymnasium's registry with random actions."""

from __future__ import annotations

import json
from typing import Any

import gymnasium

from agentrl import Task
from benchmarks.adapter_suites.both import TURNS, ExcludedError, Played, Row, play_both, refused, run

ENV = "agentrl_envs.adapters.gymnasium:Gymnasium"


def written(space: Any, action: Any) -> str:
    """An action as the text of a player."""
    return str(int(action)) if type(space).__name__ == "Discrete" else json.dumps(space.to_jsonable([action])[0])


def reference(name: str, seed: int) -> Played:
    env, played = gymnasium.make(name), Played(seed)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    while not played.done and len(played.texts) < TURNS:
        action = env.action_space.sample()
        played.texts.append(written(env.action_space, action))
        _, reward, terminated, truncated, _ = env.step(action)
        played.rewards.append(float(reward))
        played.done = bool(terminated or truncated)
    env.close()
    return played


def play(name: str) -> Row:
    said = refused(ENV, {"name": name})
    if said is not None:
        for known in ("pygame", "box2d", "mujoco", "mujoco_py", "MuJoCo", "jax", "shimmy", "an image"):
            if known.lower() in said.lower():
                raise ExcludedError(
                    "its observations are more than 256 numbers" if known == "an image" else f"needs {known.lower()}"
                )
        raise ExcludedError(said[:120])
    return play_both(
        ENV, {"name": name}, lambda seed: reference(name, seed), lambda seed: Task(seed=seed, metadata={"name": name})
    )


if __name__ == "__main__":
    run(list(gymnasium.registry), play)
