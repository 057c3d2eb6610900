"""Players of tic-tac-toe: `random` moves at random, `perfect` never loses, `mediocre` plays demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

LINES = ("123", "456", "789", "147", "258", "369", "159", "357")


def random(messages: Sequence[Mapping[str, Any]], tools: object, rng: Random) -> str:
    """Take a random free square."""
    return rng.choice(_read(messages)[2])


def perfect(messages: Sequence[Mapping[str, Any]], tools: object, rng: Random) -> str:
    """Take a best move, by a search of the whole game tree."""
    me, you, free = _read(messages)
    values = {square: -_value(you, _with(me, square)) for square in free}
    best = max(values.values())
    return rng.choice([square for square, value in values.items() if value == best])


def mediocre(messages: Sequence[Mapping[str, Any]], tools: object, rng: Random) -> str:
    """Take a best move half of the time, else a random free square. Imitation teaches the format, but not good play."""
    return (perfect if rng.random() < 0.5 else random)(messages, tools, rng)


def _read(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """The player's squares, the opponent's squares and the free squares, from the last observation."""
    words = str(messages[-1]["content"]).split()
    return words[1].strip("-"), words[3].strip("-"), words[5]


def _with(squares: str, square: str) -> str:
    return "".join(sorted(squares + square))


@cache
def _value(me: str, you: str) -> int:
    """The value of a position for the seat that moves: 1 for a win, 0 for a draw, -1 for a loss, if both seats play
    perfectly."""
    if any(set(line) <= set(you) for line in LINES):
        return -1
    free = [square for square in "123456789" if square not in me + you]
    return max((-_value(you, _with(me, square)) for square in free), default=0)
