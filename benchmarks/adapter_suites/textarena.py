"""Play TextArena's registry, without the variants that only wrap observations differently (-train, -raw).

The player writes moves in the format that the game's prompt shows, with different numbers and letters.
"""

from __future__ import annotations

import re
from random import Random

import textarena
from textarena.envs.registration import ENV_REGISTRY

from agentrl import Task
from benchmarks.adapter_suites.both import TURNS, ExcludedError, Played, Row, play_both, player, refused, run

ENV = "agentrl_envs.adapters.textarena:TextArena"

REASONS = {
    "cannot be played alone": "is for several players",
    "two-player": "is for several players",
    " players": "is for several players",
    "NLTK's data": "needs NLTK's data, which no package registry has",
    "OPENROUTER_API_KEY": "asks a model at OpenRouter",
    "SyntaxError": "is written for Python 3.12",
    "FileNotFoundError": "lacks files in the suite's package",
    "Could not import": "lacks files in the suite's package",
}


def move(prompt: str, rng: Random) -> str:
    shown = re.findall(r"\[[^\[\]\n]{1,24}\]", prompt) or ["[1]"]
    said = rng.choice(shown)
    if rng.random() < 0.5:
        said = re.sub(r"\d+", lambda number: str(rng.randint(0, 2 * int(number[0]) + 1) % 1000), said)
    return said


def reference(name: str, seed: int) -> Played:
    env, played, rng = textarena.make(name), Played(seed), player(seed)
    env.reset(num_players=1, seed=seed)
    _, observation = env.get_observation()
    prompt = str(observation)
    while not played.done and len(played.texts) < TURNS:
        played.texts.append(move(prompt, rng))
        played.done, _ = env.step(action=played.texts[-1])
        if not played.done:
            env.get_observation()
    rewards, _ = env.close()
    if played.done and isinstance(rewards[0], str):
        raise ExcludedError("rewards a wrong move with a text instead of a number")
    played.rewards = [float(rewards[0])] if played.done else []
    return played


def play(name: str) -> Row:
    said = refused(ENV, {"name": name})
    if said is not None:
        raise ExcludedError(next((reason for word, reason in REASONS.items() if word in said), said[:160]))
    return play_both(
        ENV, {"name": name}, lambda seed: reference(name, seed), lambda seed: Task(seed=seed, metadata={"name": name})
    )


if __name__ == "__main__":
    run([name for name in ENV_REGISTRY if not name.endswith(("-train", "-raw"))], play)
