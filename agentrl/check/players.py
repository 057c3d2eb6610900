"""The players that know the answers, and those that do nothing: each is played twice on each task."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.check.places import Place, of_function
from agentrl.check.playing import NOTHING, Played, Speak, Speech, Subject, by, play, recording
from agentrl.check.scoring import in_range
from agentrl.check.sizes import sizes
from agentrl.check.verdicts import TIMES, Play, judge
from agentrl.engine.scripted import Turn
from agentrl.trajectory import Trajectory
from agentrl.types import Task

_CHECK = "players"
_TURNS_OF_NOTHING = 6


async def players(subject: Subject, tasks: Sequence[Task]) -> None:
    """Findings about the scores. What the gold player said is kept as a script of its task."""
    for task in tasks:
        await _judged(subject, task)
    given = [name for name, player in (("gold", subject.gold), ("no-op", subject.noop)) if player]
    subject.report.checked[_CHECK] = f"{' and '.join([*given, 'no-op by agentrl'])} on {len(tasks)} tasks, twice each"
    if subject.gold is None:
        subject.report.skipped[_CHECK] = "whether the task can be won: name a player that knows the answers, --gold"


async def _judged(subject: Subject, task: Task) -> None:
    gold: list[Play] = []
    if subject.gold is not None:
        said: list[Turn] = []
        gold.append(_play(await _played(subject, task, recording(by(subject.gold), said)), subject))
        subject.scripts[task.id] = _without_rest(said)
        gold += [_play(await _played(subject, task, by(subject.gold)), subject) for _ in range(TIMES - 1)]
    speak = by(subject.noop) if subject.noop else _nothing
    noop = [_play(await _played(subject, task, speak, turns=_TURNS_OF_NOTHING), subject) for _ in range(TIMES)]
    if any(one.error for one in (*gold, *noop)):
        return  # the failure is told elsewhere
    least, most = subject.cls.reward_range or (0.0, 1.0)
    verdict, reason = judge(noop, gold, least=max(least, 0.0) if subject.cls.reward_range else 0.0, most=most)
    _tell(subject, task, verdict, reason)


def _tell(subject: Subject, task: Task, verdict: str, reason: str) -> None:
    place = subject.own.of_member("score", "step")
    if verdict == "oracle failed":
        what = f"the gold player does not get the most that there is, on task {task.id}: {reason}"
        player = of_function(subject.gold)
        subject.report.error(_CHECK, place, what, f"mend score, or the player at {player}")
    elif verdict == "flaky":
        subject.report.error(
            _CHECK,
            place,
            f"two plays of one player score differently on task {task.id}: {reason}",
            "let the score depend on task and trajectory alone",
        )
    elif verdict == "no-op rewarded":
        tell = subject.report.error if subject.noop or _full(subject, reason) else subject.report.warn
        tell(_CHECK, place, f"{reason}, on task {task.id}", "reward only what was done")


def _full(subject: Subject, reason: str) -> bool:
    most = (subject.cls.reward_range or (0.0, 1.0))[1]
    return f"{most:g}" in reason.split()


async def _played(subject: Subject, task: Task, speak: Speak, turns: int | None = None) -> Played:
    played = await play(subject, task, speak, turns=turns)
    sizes(subject, played)
    in_range(subject, played)
    failed(subject, played)
    return played


def failed(subject: Subject, played: Played) -> bool:
    """Report the failure of an ordinary play, if there is one."""
    failure = played.failure
    if failure is None:
        return False
    place: Place = subject.place_of(failure)
    if failure.kind == "bug":
        subject.report.error("lifecycle", place, f"{failure.boundary} fails: {failure.error}", "mend it")
    else:
        needs = "; ".join(subject.cls.needs(subject.envs.config, 1)) or "what the error names"
        what = f"{failure.boundary} says that the world broke: {failure.error}"
        subject.report.error("lifecycle", place, what, f"start what the Env needs ({needs})")
    return True


def _play(played: Played, subject: Subject) -> Play:
    reward = played.trajectory.reward
    return Play(reward, played.failure.error if played.failure else "")


def _nothing(task: Task, trajectory: Trajectory) -> Speech:
    while True:
        yield NOTHING


def _without_rest(said: Sequence[Turn]) -> list[Turn]:
    """The turns of a player, without what was said in its place after its end."""
    turns = list(said)
    while len(turns) > 1 and turns[-1] == NOTHING:
        turns.pop()
    return turns
