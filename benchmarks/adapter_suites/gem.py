"""Play gem's registry with gem's random actions, or with boxed numbers if a game has no random actions."""

from __future__ import annotations

from random import Random
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY

from agentrl import Task
from benchmarks.adapter_suites.both import (
    TURNS,
    ExcludedError,
    Played,
    Row,
    play_both,
    player,
    refused,
    run,
    untouched_random,
)

ENV = "agentrl_envs.adapters.gem:Gem"

REASONS = {
    "No module named 'datasets'": "needs a data set of the Hugging Face hub",
    "pandas": "needs pandas, which gem-llm does not install",
    "crosswords": "needs pandas, which gem-llm does not install",
    "Must specify at least one dataset": "is a mixture, whose parts its options must name",
    "nltk": "needs NLTK's data, which no package registry has",
    "NLTK": "needs NLTK's data, which no package registry has",
}


def move(env: Any, rng: Random) -> str:
    """A random action. Every second answer to a question is right."""
    data = getattr(env, "data", None)
    if isinstance(data, dict) and data.get("answer") and rng.random() < 0.5:
        return f"\\boxed{{{data['answer']}}}"
    with untouched_random():
        try:
            return str(env.sample_random_action())
        except NotImplementedError:
            return f"\\boxed{{{rng.randint(0, 9)}}}"


def reference(name: str, seed: int) -> Played:
    env, played, rng = gem.make(name), Played(seed), player(seed)
    env.reset(seed=seed)
    while not played.done and len(played.texts) < TURNS:
        played.texts.append(move(env, rng))
        _, reward, terminated, truncated, _ = env.step(played.texts[-1])
        played.rewards.append(float(reward))
        played.done = bool(terminated or truncated)
    return played


def play(name: str) -> Row:
    said = refused(ENV, {"name": name})
    if said is not None:
        raise ExcludedError(next((reason for word, reason in REASONS.items() if word in said), said[:160]))
    return play_both(
        ENV, {"name": name}, lambda seed: reference(name, seed), lambda seed: Task(seed=seed, metadata={"name": name})
    )


if __name__ == "__main__":
    run(list(ENV_REGISTRY), play)
