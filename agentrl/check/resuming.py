"""Abort an episode after each turn, pickle the episode, resume in a fresh Env: the end must be as without the abort."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

from agentrl._util.findings import Place
from agentrl.check.playing import EnvUnderTest, PlayedEpisode, go_on, play, saying
from agentrl.check.repeating import difference, global_random
from agentrl.engine.scripted import Turn
from agentrl.env.env import Env, runtime
from agentrl.episode.machines import release
from agentrl.episode.parking import resume_method
from agentrl.episode.state import Parked
from agentrl.errors import ResumeError, one_line
from agentrl.types import Task

_CHECK = "resuming"


async def resuming(subject: EnvUnderTest, task: Task, script: Sequence[Turn]) -> str:
    """Check every turn. Returns how many turns were tried, or why none could be tried."""
    how = resume_method(subject.cls)
    if how == "alive" or subject.is_agent:
        return "an aborted episode stays open: the Env has neither snapshot nor `deterministic`"
    with global_random(11):
        whole = await play(subject, task, saying(script))
    turns = whole.turns
    if whole.failure is not None or turns < 2:
        return "no play takes two turns without a failure" if whole.failure is None else "the play fails"
    places = [*range(1, turns)]
    for after in places[:1] if subject.slow else places:
        with global_random(12):
            if not await _resumed(subject, task, script, whole, after):
                break
    return f"{how} after {'the first' if subject.slow else 'each'} of {turns - 1} turns"


async def _resumed(subject: EnvUnderTest, task: Task, script: Sequence[Turn], whole: PlayedEpisode, after: int) -> bool:
    """Whether an episode that is aborted after that many turns ends as `whole` did."""
    first = await play(subject, task, saying(script), stop_after=after)
    if first.parked is None:
        problem = first.trajectory.info.get("not_parked")
        if problem is not None:
            _found(subject, _of_snapshot(subject), f"snapshot fails after turn {after}: {problem}", "fix it")
        return problem is None
    parked = _through_pickle(subject, first.parked, after)
    if parked is None:
        return False
    try:
        second = await go_on(subject, parked, script[after:])
    except ResumeError as exc:
        if subject.steady:
            place = (subject.author.of_error(exc) if exc.__cause__ else None) or _of_snapshot(subject)
            _found(
                subject, place, f"an episode cannot be resumed after turn {after}: {one_line(exc)}", _remedy(subject)
            )
        return False
    finally:
        await release(parked.machines)
    problem = difference(whole.answers(), second.answers())
    if problem and subject.steady:
        place = _where(subject, second)
        _found(
            subject,
            place,
            f"an episode that is resumed after turn {after} ends differently: {problem}",
            _remedy(subject),
        )
    return not problem


def _where(subject: EnvUnderTest, episode: PlayedEpisode) -> Place:
    """The line that raised after resuming, if any; else the line of the snapshot hook."""
    if episode.failure is not None:
        return subject.place_of(episode.failure)
    error = runtime(episode.env).first_tool_error
    return (subject.author.of_error(error) if error is not None else None) or _of_snapshot(subject)


def _through_pickle(subject: EnvUnderTest, parked: Parked, after: int) -> Parked | None:
    try:
        pickled = pickle.dumps(replace(parked, env=None))
    except Exception as exc:  # noqa: BLE001 - the pickle boundary: classes that refuse it raise anything
        message = f"pickle cannot write the snapshot after turn {after}: {one_line(exc)}"
        _found(subject, subject.author.of_member("snapshot"), message, "return plain data: numbers, text, lists, dicts")
        return None
    read: Parked = pickle.loads(pickled)
    return read


def _of_snapshot(subject: EnvUnderTest) -> Place:
    return subject.author.of_member("snapshot" if subject.cls.snapshot is not Env.snapshot else "deterministic")


def _remedy(subject: EnvUnderTest) -> str:
    if subject.cls.snapshot is Env.snapshot:
        return "remove `deterministic`, or make each answer depend on task, seed and actions alone"
    return "put all that later turns and the score need into snapshot, and set it in restore"


def _found(subject: EnvUnderTest, place: Place, message: str, remedy: str) -> None:
    subject.report.error(_CHECK, place, message, remedy)
