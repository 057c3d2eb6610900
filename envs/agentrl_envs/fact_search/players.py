"""Scripted players: gold scores 1.0 and noop 0.0, which validates the environment; mediocre records demonstrations."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from random import Random

from agentrl import Task
from agentrl.engine.scripted import Turn
from agentrl.testing import call
from agentrl_envs.fact_search.env import ANSWER
from agentrl_envs.fact_search.facts import load_facts

GUESSES = 0.65
"""The share of episodes in which the mediocre player guesses. More than half, so that a greedy imitator guesses."""


def gold(task: Task) -> Generator[Turn, str, None]:
    """Looks up the needed facts, then answers."""
    for query in task.metadata["searches"]:
        yield call("search", query=query)
    yield f"{ANSWER}{task.label}"


def noop(task: Task) -> Generator[Turn, str, None]:
    """Neither searches nor answers."""
    yield f"{ANSWER}unknown"


def mediocre(task: Task) -> Generator[Turn, str, None]:
    """Guesses a plausible answer without searching, 65 % of the time; else plays as gold does.

    Imitation teaches the format, and how to copy from a passage, but not the strategy: the likeliest turn is a guess.
    Only the reward shows that searching is better.
    """
    rng = Random(f"mediocre-{task.id}")
    if rng.random() < GUESSES:
        yield f"{ANSWER}{rng.choice(_plausible(task.metadata['kind']))}"
    else:
        yield from gold(task)


@lru_cache(maxsize=2)
def _plausible(kind: str) -> list[str]:
    facts = load_facts()
    countries = [country for country in facts.countries if country.name not in facts.held_out]
    return [country.name if kind == "country" else country.capital for country in countries]
