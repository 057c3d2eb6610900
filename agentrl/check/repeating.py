"""Play the same script several times: each play must get the same observations and rewards, leave
nothing open, and change no shared state."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl.check.leaks import Leak, LeakTracker
from agentrl.check.playing import EnvUnderTest, PlayedEpisode, Speak, play, saying
from agentrl.check.scoring import in_range
from agentrl.check.sizes import sizes
from agentrl.check.state import Culprit, Pictures, StateName, changed, pictures
from agentrl.check.undetermined import undetermined_calls
from agentrl.engine.scripted import Turn
from agentrl.types import Task

_TIMES = 3
_REMEDIES = {
    "class": "set it in reset, on self: a class attribute is shared by all episodes, which run at the same time",
    "module": "keep it on self: a global is shared by all episodes, which run at the same time",
    "shared": "keep it on self: all episodes share this object, and run at the same time",
}


@dataclass(slots=True)
class _Once:
    episode: PlayedEpisode
    leaks: list[Leak]
    before: Pictures
    after: Pictures


async def repeat(subject: EnvUnderTest, ledger: LeakTracker, script: Sequence[Turn], task: Task) -> None:
    """Play a script three times on a task, and report differences, leaks and changes."""
    speak = saying(script)
    plays = [await _once(subject, ledger, task, speak, number) for number in range(_TIMES)]
    _leaks(subject, ledger, plays[-2:])
    sizes(subject, plays[0].episode)
    in_range(subject, plays[0].episode, "a script, played again")
    await _state(subject, task, speak, plays)
    _determinism(subject, [once.episode for once in plays])


async def _once(subject: EnvUnderTest, ledger: LeakTracker, task: Task, speak: Speak, number: int) -> _Once:
    gc.collect()  # garbage of earlier episodes is collected now, not during this one
    for _ in range(3):
        await asyncio.sleep(0)
    opened, before = ledger.look(), pictures(subject.author, subject.envs)
    with global_random(number):
        episode = await play(subject, task, speak)
    leaks = await ledger.leaks(opened) if number else []
    await ledger.clear(leaks)
    return _Once(episode, leaks, before, pictures(subject.author, subject.envs))


@contextmanager
def global_random(seed: int) -> Iterator[None]:
    """Seed Python's global random numbers differently for each play, as in separate processes."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _leaks(subject: EnvUnderTest, ledger: LeakTracker, plays: Sequence[_Once]) -> None:
    """Report the objects that both plays left open. An object of only one play stays on purpose, such as a pool's
    thread."""
    first, second = ({leak.same: leak for leak in once.leaks} for once in plays)
    for same in first.keys() & second.keys():
        report_left(subject, ledger, second[same], "an episode")


def report_left(subject: EnvUnderTest, ledger: LeakTracker, leak: Leak, when: str) -> None:
    ledger.reported.add(leak.same)
    subject.report.error(
        "leaks",
        leak.place or subject.author.of_member("reset", "step", "run"),
        f"{when} leaves {'an' if leak.kind == 'open file' else 'a'} {leak.kind} behind: {leak.name[:80]}",
        _ENDINGS[leak.kind],
    )


_ENDINGS = {
    "task": "cancel it in close and await it, or use a TaskGroup within `await self.enter(...)`",
    "thread": "end it in close and join it",
    "process": "end it in close and wait for it, or open it by `await self.enter(...)`",
    "sandbox": "take it by `await self.enter(self.shared.acquire())`, which gives it back",
    "temporary file": "remove it in close, or make it by tempfile.TemporaryDirectory within `self.enter`",
    "open file": "close it in close, or open it by `await self.enter(...)`",
}


async def _state(subject: EnvUnderTest, task: Task, speak: Speak, plays: Sequence[_Once]) -> None:
    """Report shared state that every play changed. A change by the first play alone may be a cache that was filled."""
    changes = changed(plays[1].before, plays[1].after) & changed(plays[2].before, plays[2].after)
    if difference(plays[0].episode.answers(), plays[1].episode.answers()):
        changes |= changed(plays[0].before, plays[0].after)
    for change in sorted(changes):
        with Culprit(subject.author, partial(_pictured, subject, change)) as culprit:
            await play(subject, task, speak)
        place = culprit.place or subject.author.of_global(change.name) or subject.author.of_member(change.name)
        message = f"an episode changes {change}, which outlives it"
        tell = subject.report.error if change.kind == "class" else subject.report.warn
        tell("state", place, message, _REMEDIES[change.kind])


async def first_change(subject: EnvUnderTest, tasks: Sequence[Task], speak: Speak) -> tuple[Culprit, set[StateName]]:
    """Play two tasks, and find the first line that changes an object which outlives the episode."""
    before = pictures(subject.author, subject.envs)
    with Culprit(subject.author, lambda: pictures(subject.author, subject.envs)) as culprit:
        for task in tasks:
            await play(subject, task, speak)
    return culprit, changed(before, pictures(subject.author, subject.envs))


def _pictured(subject: EnvUnderTest, state: StateName) -> Any:
    return pictures(subject.author, subject.envs).get(state)


def difference(answers: Sequence[str], other: Sequence[str]) -> str:
    """The first difference of two lists of observations; "" for equal lists."""
    for a, b in zip(answers, other, strict=False):
        if a != b:
            first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            start = max(0, first - 20) if first > 60 else 0
            return f"{a[start : start + 100]!r} and {b[start : start + 100]!r}"
    return "" if len(answers) == len(other) else f"{len(answers)} and {len(other)} messages"


def _determinism(subject: EnvUnderTest, plays: Sequence[PlayedEpisode]) -> None:
    report, first = subject.report, plays[0]
    answers = next((d for other in plays[1:] if (d := difference(first.answers(), other.answers()))), "")
    begins = any(first.first() != other.first() for other in plays[1:])
    if not answers and not begins:
        return
    subject.steady = False
    if report.has("state"):
        return  # this explains the difference
    calls = undetermined_calls(subject.author)
    used = f" ({calls[0][1]})" if calls else ""
    if begins:
        place = calls[0][0] if calls else subject.author.of_member("reset", "tools")
        message = f"reset shows two worlds for one task and seed{used}: {answers}"
        report.error(
            "determinism", place, message, "use self.rng, which task.seed has seeded; a group shares one world"
        )
    elif subject.cls.deterministic:
        place = calls[0][0] if calls else subject.author.of_member("deterministic")
        message = f"`deterministic = True`, but the same actions got two answers{used}: {answers}"
        report.error("determinism", place, message, "use self.rng, or remove `deterministic`")
    elif calls:
        message = f"the same actions got two answers under one seed{used}: {answers}"
        report.warn("determinism", calls[0][0], message, "use self.rng, which task.seed has seeded")
    else:
        report.skip(
            "determinism", f"the same actions got two answers, and the Env does not declare `deterministic`: {answers}"
        )
