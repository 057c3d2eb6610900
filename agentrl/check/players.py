"""The gold player, which knows the answers, and one that does nothing: each plays each task twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from agentrl.check.places import Place, of_function
from agentrl.check.playing import NOTHING, EnvUnderTest, PlayedEpisode, Speak, Speech, by, play, recording
from agentrl.check.scoring import in_range
from agentrl.check.sizes import sizes
from agentrl.check.verdicts import TIMES, Play, judge
from agentrl.engine.scripted import Turn
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Task

_CHECK = "players"
_GOLD = "the gold player"
_TURNS_OF_NOTHING = 6
_SCORE_NOTHING = "give reward=0.0 in the last step of a loss, or let score return sum(trajectory.step_rewards)"


async def players(subject: EnvUnderTest, tasks: Sequence[Task], of: str = "") -> None:
    """Findings about the scores. The gold player's turns are kept as a script of the task.

    `of` describes all tasks there are: "6 held-out and 18 training tasks".
    """
    plays = [await _both(subject, task) for task in tasks]
    _unscored(subject, plays)
    for one in plays:
        _judged(subject, one)
    _nothing_rewarded(subject, [one for one in plays if not one.broken])
    given = [name for name, player in (("gold", subject.gold), ("no-op", subject.noop)) if player]
    by_whom = " and ".join([*given, *([] if subject.noop else ["no-op by agentrl"])])
    subject.report.checked[_CHECK] = f"{len(tasks)} of {of or f'{len(tasks)} tasks'}, each twice by {by_whom}"
    if subject.gold is None:
        subject.report.skipped[_CHECK] = "whether the task can be won: name a player that knows the answers, --gold"


@dataclass(frozen=True, slots=True)
class _Both:
    """One task, played by the gold player and by doing nothing."""

    task: Task
    gold: Sequence[PlayedEpisode]
    noop: Sequence[PlayedEpisode]

    @property
    def broken(self) -> bool:
        """Whether a play failed. That is reported elsewhere."""
        return any(played.failure for played in (*self.gold, *self.noop))

    def nothing(self) -> float:
        """The highest reward for doing nothing. No reward counts as 0."""
        return max(played.trajectory.reward or 0.0 for played in self.noop)


async def _both(subject: EnvUnderTest, task: Task) -> _Both:
    gold: list[PlayedEpisode] = []
    if subject.gold is not None:
        said: list[Turn] = []
        gold.append(await _played(subject, task, recording(by(subject.gold), said), _GOLD))
        subject.scripts[task.id] = _without_rest(said)
        gold += [await _played(subject, task, by(subject.gold), _GOLD) for _ in range(TIMES - 1)]
    speak = by(subject.noop) if subject.noop else _nothing
    noop = [await _played(subject, task, speak, _noop(subject), turns=_TURNS_OF_NOTHING) for _ in range(TIMES)]
    return _Both(task, gold, noop)


def _unscored(subject: EnvUnderTest, plays: Sequence[_Both]) -> None:
    """Report plays that should have been scored, but got no reward at all.

    A `score` may return what the steps gave, which is None if no step gave anything. That is an error only if no step
    of any play gave a reward; otherwise it is a warning.
    """
    whose = [(_GOLD, played) for one in plays for played in one.gold]
    whose += [(_noop(subject), played) for one in plays for played in one.noop]
    place = subject.own.of_member("score", "step", "run")
    in_steps = any(played.trajectory.step_rewards for _, played in whose)
    for player, played in whose:
        if played.failure is not None or played.trajectory.reward is not None:
            continue
        if subject.own.wrote("score") and (player == _GOLD or not in_steps):
            what = f"score returned None ({played.told(player)})"
            subject.report.error(_CHECK, place, what, "return a number", played.row(player))
        elif player == _GOLD:
            what = f"the gold player got no reward, neither by a step nor by a score ({played.told(player)})"
            subject.report.error(_CHECK, place, what, "write score, or give rewards in steps", played.row(player))
        elif in_steps:
            what = f"no step gave a reward, so the episode is unscored unless another one is ({played.told(player)})"
            subject.report.warn(_CHECK, place, what, _SCORE_NOTHING, played.row(player))
            return


def _judged(subject: EnvUnderTest, one: _Both) -> None:
    """Report what is wrong with the gold player's scores, and two plays that disagree."""
    if one.broken or any(played.trajectory.reward is None for played in one.gold):
        return
    gold = [Play(played.trajectory.reward) for played in one.gold]
    noop = [Play(played.trajectory.reward or 0.0) for played in one.noop]
    verdict, reason = judge(noop, gold, least=inf, most=_range(subject)[1])
    place = subject.own.of_member("score", "step")
    if verdict == "oracle failed":
        what = f"the gold player does not get the highest reward: {reason} ({one.gold[0].told(_GOLD)})"
        what += _answered(one.gold[0].trajectory)
        player = of_function(subject.gold)
        subject.report.error(_CHECK, place, what, f"fix score, or the player at {player}", one.gold[0].row(_GOLD))
    elif verdict == "flaky":
        what = f"two plays of one player score differently on task {one.task.id}: {reason}"
        subject.report.error(_CHECK, place, what, "let the score depend on task and trajectory alone")


def _answered(trajectory: Trajectory) -> str:
    """The player's answer next to the label, if that may explain the low score."""
    answer, label = trajectory.answer, trajectory.task.label
    if not answer or not isinstance(label, str | int | float | bool):
        return ""
    shown = f"; it answered {answer!r:.80}, and the label is {label!r:.80}"
    if isinstance(label, str) or answer.strip() != str(label):
        return shown
    return f"{shown}, of type {type(label).__name__}: compare with str(self.task.label)"


def _nothing_rewarded(subject: EnvUnderTest, plays: Sequence[_Both]) -> None:
    """Report that doing nothing is rewarded. It is an error if it wins every task, as then nothing can be learned.

    If it wins only some, those may be tasks with nothing to do.
    """
    least, most = _range(subject)
    rewarded = [one for one in plays if one.nothing() > max(least, 0.0)]
    if not rewarded:
        return
    won = [one for one in plays if one.nothing() >= most]
    better = any((played.trajectory.reward or 0.0) > one.nothing() for one in plays for played in one.gold)
    first = max(rewarded[0].noop, key=lambda played: played.trajectory.reward or 0.0)
    place, player = subject.own.of_member("score", "step"), _noop(subject)
    what = f"doing nothing scored {rewarded[0].nothing():g} ({first.told(player)})"
    if len(won) == len(plays) and not better:
        what += ", and the full reward on every task that was played"
        subject.report.error(_CHECK, place, what, "reward only actual work", first.row(player))
        return
    if len(rewarded) < len(plays):
        names = ", ".join(one.task.id for one in rewarded)
        what += f"; it is rewarded on {len(rewarded)} of {len(plays)} tasks: {names}"
        remedy = "reward only actual work, but this may be right for tasks with nothing to do"
    else:
        remedy = "reward only actual work"
    subject.report.warn(_CHECK, place, what, remedy, first.row(player))


def _range(subject: EnvUnderTest) -> tuple[float, float]:
    """The rewards that doing nothing and the gold player should get."""
    return subject.cls.reward_range or (0.0, 1.0)


def _noop(subject: EnvUnderTest) -> str:
    return "the no-op player" if subject.noop else "a player that does nothing useful"


async def _played(
    subject: EnvUnderTest, task: Task, speak: Speak, player: str, turns: int | None = None
) -> PlayedEpisode:
    played = await play(subject, task, speak, turns=turns)
    sizes(subject, played)
    in_range(subject, played, player)
    failed(subject, played)
    return played


def failed(subject: EnvUnderTest, played: PlayedEpisode) -> bool:
    """Whether an ordinary play failed. A failure is reported."""
    failure = played.failure
    if failure is None:
        return False
    place: Place = subject.place_of(failure)
    if failure.kind == "bug":
        subject.report.error("lifecycle", place, f"{failure.boundary} fails: {failure.error}", "fix it")
    else:
        needs = "; ".join(subject.cls.needs(subject.envs.config, 1)) or "what the error names"
        what = f"{failure.boundary} raises InfraError: {failure.error}"
        subject.report.error("lifecycle", place, what, f"start what the Env needs ({needs})")
    return True


def _nothing(task: Task, trajectory: Trajectory) -> Speech:
    while True:
        yield NOTHING


def _without_rest(said: Sequence[Turn]) -> list[Turn]:
    """The turns of a player, without those that were filled in after its end."""
    turns = list(said)
    while len(turns) > 1 and turns[-1] == NOTHING:
        turns.pop()
    return turns
