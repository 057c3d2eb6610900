"""Check that a player that never reads its task does not earn the reward: a refusal, or the right turns of another
task."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agentrl.check.playing import EnvUnderTest, by, play, recording, saying, without_rest
from agentrl.engine.scripted import Turn
from agentrl.types import Task

REFUSAL = "I cannot help with that."
LEAST_TASKS, MOST_TASKS = 12, 32
"""A share of fewer tasks than the first number says little."""
_NEARLY = 0.66
"""A constant player that earns this share of the right answers' reward is reported."""
_OTHERS = 4
_SHARE = 0.5
"""The share of the check's `seconds` for the constant players."""
_CHECK, _PART = "players", "constant answers"


@dataclass(frozen=True, slots=True)
class _Known:
    """A task, the gold player's turns, and their reward."""

    task: Task
    turns: Sequence[Turn]
    reward: float

    @property
    def key(self) -> str:
        return str([_key(turn) for turn in self.turns])


async def constants(subject: EnvUnderTest, others: Sequence[Task], seconds: float) -> None:
    """Warn if a constant player earns nearly the reward of the gold player, on 12 tasks or more.

    The players: a refusal, the most frequent right turns, the right turns of four other tasks, and only the most
    frequent first call of a tool.
    """
    until = time.monotonic() + seconds * _SHARE
    known = await _known_tasks(subject, others, until)
    if reason := _unplayed(subject, known):
        subject.report.checked[_PART] = f"not played: {reason}"
        return
    most = sum(each.reward for each in known)
    players = _players(known)
    earned = {name: await _earned(subject, known, turns, most, until) for name, turns in players.items()}
    subject.report.checked[_PART] = f"{len(earned)} players on {len(known)} tasks"
    name, reward = max(earned.items(), key=lambda item: item[1])
    if reward >= _NEARLY * most:
        shown = f"{name}: {_key(players[name][-1])!r:.60}"
        message = f"a constant answer earns {reward / most:.2f} of this Env's reward, on {len(known)} tasks ({shown})"
        remedy = "balance the tasks' answers, or reward only the task's own answer"
        place = subject.author.of_member("score", "step", "run")
        subject.report.warn(_CHECK, place, message, remedy, {"player": name, "share": round(reward / most, 3)})


async def _known_tasks(subject: EnvUnderTest, others: Sequence[Task], until: float) -> list[_Known]:
    """Tasks that the gold player can play in the time. The further tasks are drawn at random: a file may be sorted."""
    known = list[_Known]()
    spread = Random(0).sample([*others], min(len(others), MOST_TASKS))
    for task in [*subject.tasks, *spread][:MOST_TASKS]:
        if subject.gold is None or subject.is_agent or time.monotonic() > until:
            break
        turns: list[Turn] = []
        episode = await play(subject, task, recording(by(subject.gold), turns))
        if episode.failure is None and episode.trajectory.reward is not None:
            known.append(_Known(task, without_rest(turns), episode.trajectory.reward))
    return known


def _unplayed(subject: EnvUnderTest, known: Sequence[_Known]) -> str:
    """Why no constant player is played; "" if they are."""
    if subject.is_agent:
        return "an agent takes its turns by itself"
    if subject.gold is None:
        return "no gold player"
    if len(known) < LEAST_TASKS:
        return f"{len(known)} tasks in the time, and a share needs {LEAST_TASKS}"
    if sum(each.reward for each in known) <= 0:
        return "the gold player earns nothing"
    return "all tasks have the same right turns" if len({each.key for each in known}) == 1 else ""


def _players(known: Sequence[_Known]) -> dict[str, Sequence[Turn]]:
    """The turns of each constant player, by a name."""
    turns, counts = {each.key: each.turns for each in known}, Counter(each.key for each in known)
    (most, _), *rest = counts.most_common(1 + _OTHERS)
    others = {f"the right turns of other tasks, {number}": turns[key] for number, (key, _) in enumerate(rest, 1)}
    calls = [each.turns[0] for each in known if isinstance(each.turns[0], Mapping) and each.turns[0].get("tool_calls")]
    first = Counter(map(_key, calls)).most_common(1)
    only = {"only the first call": [turn for turn in calls if _key(turn) == first[0][0]][:1]} if first else {}
    return {"a refusal": [REFUSAL], "the most frequent right turns": turns[most], **others, **only}


async def _earned(
    subject: EnvUnderTest, known: Sequence[_Known], turns: Sequence[Turn], most: float, until: float
) -> float:
    """The sum of a constant player's rewards. Stops, with 0, as soon as the player cannot earn enough."""
    earned, left = 0.0, most
    for each in known:
        if earned + left < _NEARLY * most or time.monotonic() > until:
            return 0.0
        episode = await play(subject, each.task, saying(turns))
        earned, left = earned + (episode.trajectory.reward or 0.0), left - each.reward
    return earned


def _key(turn: Turn) -> str:
    """A turn as text, without the ids of its calls."""
    if not isinstance(turn, Mapping):
        return str(turn)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls") or ()]
    return f"{turn.get('content') or ''}{calls or ''}"
