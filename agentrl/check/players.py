"""Check the scores: a gold player, which knows the answers, and an idle player play each task twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from agentrl._util.findings import Place
from agentrl.check.places import of_function
from agentrl.check.playing import NOTHING, EnvUnderTest, PlayedEpisode, Speak, Speech, by, play, recording, without_rest
from agentrl.check.scoring import in_range
from agentrl.check.sizes import sizes
from agentrl.check.verdicts import TIMES, Play, judge
from agentrl.engine.scripted import Turn
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task

_CHECK = "players"
_GOLD = "the gold player"
_TURNS_OF_NOTHING = 6
_SCORE_NOTHING = "give reward=0.0 in the last step of a loss, or let score return sum(trajectory.step_rewards)"


async def players(subject: EnvUnderTest, tasks: Sequence[Task], of: str = "") -> None:
    """Report wrong scores. The gold player's turns are stored as a script of the task.

    `of` describes the tasks from which `tasks` were chosen, such as "6 held-out and 18 training tasks".
    """
    plays = [await _both(subject, task) for task in tasks]
    _unscored(subject, plays)
    for both in plays:
        _judged(subject, both)
    _nothing_rewarded(subject, [both for both in plays if not both.broken])
    names = [name for name, player in (("gold", subject.gold), ("no-op", subject.noop)) if player]
    by_whom = " and ".join([*names, *([] if subject.noop else ["no-op by agentrl"])])
    subject.report.checked[_CHECK] = f"{len(tasks)} of {of or f'{len(tasks)} tasks'}, each twice by {by_whom}"
    if sizes_of_gold := _sizes([episode.trajectory for both in plays for episode in both.gold]):
        subject.report.figures["gold"] = sizes_of_gold
    if subject.gold is None:
        subject.report.skip(_CHECK, "whether the task can be won: name a player that knows the answers, --gold")


def _sizes(gold: Sequence[Trajectory]) -> dict[str, JSON]:
    """The sizes of the gold player's largest episode, from which a run's limits follow; empty without such episodes."""
    turns = [turn.sampled_tokens for trajectory in gold for turn in trajectory.turns]
    if not turns:
        return {}
    return {
        "turns": max(len(trajectory.turns) for trajectory in gold),
        "turn_tokens": max(turns),
        "tokens": max(len(trajectory.tokens) for trajectory in gold),
    }


@dataclass(frozen=True, slots=True)
class _Both:
    """A task, played by the gold player and by the idle player."""

    task: Task
    gold: Sequence[PlayedEpisode]
    noop: Sequence[PlayedEpisode]

    @property
    def broken(self) -> bool:
        """Whether a play of the task failed. Other checks report the failure."""
        return any(episode.failure for episode in (*self.gold, *self.noop))

    def nothing(self) -> float:
        """The highest reward for doing nothing. No reward counts as 0."""
        return max(episode.trajectory.reward or 0.0 for episode in self.noop)


async def _both(subject: EnvUnderTest, task: Task) -> _Both:
    gold: list[PlayedEpisode] = []
    if subject.gold is not None:
        turns: list[Turn] = []
        gold.append(await _played(subject, task, recording(by(subject.gold), turns), _GOLD))
        subject.scripts[task.id] = without_rest(turns)
        gold += [await _played(subject, task, by(subject.gold), _GOLD) for _ in range(TIMES - 1)]
    speak = by(subject.noop) if subject.noop else _nothing
    noop = [await _played(subject, task, speak, _noop(subject), turns=_TURNS_OF_NOTHING) for _ in range(TIMES)]
    return _Both(task, gold, noop)


def _unscored(subject: EnvUnderTest, plays: Sequence[_Both]) -> None:
    """Report plays that should have been scored, but got no reward at all.

    A `score` may return the sum of the steps' rewards, which is None if no step gave a reward. The report is an error
    if no step of any play gave a reward, else a warning.
    """
    whose = [(_GOLD, episode) for both in plays for episode in both.gold]
    whose += [(_noop(subject), episode) for both in plays for episode in both.noop]
    place = subject.author.of_member("score", "step", "run")
    in_steps = any(episode.trajectory.step_rewards for _, episode in whose)
    for player, episode in whose:
        if episode.failure is not None or episode.trajectory.reward is not None:
            continue
        if subject.author.wrote("score") and (player == _GOLD or not in_steps):
            message = f"score returned None ({episode.told(player)})"
            subject.report.error(_CHECK, place, message, "return a number", episode.row(player))
        elif player == _GOLD:
            message = f"the gold player got no reward, neither by a step nor by a score ({episode.told(player)})"
            subject.report.error(_CHECK, place, message, "write score, or give rewards in steps", episode.row(player))
        elif in_steps:
            message = (
                f"no step gave a reward, so the episode is unscored unless another one is ({episode.told(player)})"
            )
            subject.report.warn(_CHECK, place, message, _SCORE_NOTHING, episode.row(player))
            return


def _judged(subject: EnvUnderTest, both: _Both) -> None:
    """Report mistakes in the gold player's scores, and two plays that disagree."""
    if both.broken or any(episode.trajectory.reward is None for episode in both.gold):
        return
    gold = [Play(episode.trajectory.reward) for episode in both.gold]
    noop = [Play(episode.trajectory.reward or 0.0) for episode in both.noop]
    verdict, reason = judge(noop, gold, least=inf, most=_range(subject)[1])
    place = subject.author.of_member("score", "step")
    if verdict == "oracle failed":
        message = f"the gold player does not get the highest reward: {reason} ({both.gold[0].told(_GOLD)})"
        message += _answered(both.gold[0].trajectory)
        player = of_function(subject.gold)
        subject.report.error(_CHECK, place, message, f"fix score, or the player at {player}", both.gold[0].row(_GOLD))
    elif verdict == "flaky":
        message = f"two plays of one player score differently on task {both.task.id}: {reason}"
        subject.report.error(_CHECK, place, message, "let the score depend on task and trajectory alone")


def _answered(trajectory: Trajectory) -> str:
    """The gold player's answer and the task's label as a text, if they may explain the low score."""
    answer, label = trajectory.answer, trajectory.task.label
    if not answer or not isinstance(label, str | int | float | bool):
        return ""
    message = f"; it answered {answer!r:.80}, and the label is {label!r:.80}"
    if isinstance(label, str) or answer.strip() != str(label):
        return message
    return f"{message}, of type {type(label).__name__}: compare with str(self.task.label)"


def _nothing_rewarded(subject: EnvUnderTest, plays: Sequence[_Both]) -> None:
    """Report a reward for doing nothing: an error if doing nothing wins every task, as the model then cannot learn.

    If only some tasks are won, these tasks may be already solved at the start.
    """
    least, most = _range(subject)
    rewarded = [both for both in plays if both.nothing() > max(least, 0.0)]
    if not rewarded:
        return
    won = [both for both in plays if both.nothing() >= most]
    better = any((episode.trajectory.reward or 0.0) > both.nothing() for both in plays for episode in both.gold)
    first = max(rewarded[0].noop, key=lambda episode: episode.trajectory.reward or 0.0)
    place, player = subject.author.of_member("score", "step"), _noop(subject)
    message = f"doing nothing scored {rewarded[0].nothing():g} ({first.told(player)})"
    if len(won) == len(plays) and not better:
        message += ", and the full reward on every task that was played"
        subject.report.error(_CHECK, place, message, "reward only actual work", first.row(player))
        return
    if len(rewarded) < len(plays):
        names = ", ".join(both.task.id for both in rewarded)
        message += f"; it is rewarded on {len(rewarded)} of {len(plays)} tasks: {names}"
        remedy = "reward only actual work, but this may be right for tasks with nothing to do"
    else:
        remedy = "reward only actual work"
    subject.report.warn(_CHECK, place, message, remedy, first.row(player))


def _range(subject: EnvUnderTest) -> tuple[float, float]:
    """The expected rewards of the idle and the gold player."""
    return subject.cls.reward_range or (0.0, 1.0)


def _noop(subject: EnvUnderTest) -> str:
    return "the no-op player" if subject.noop else "a player that does nothing useful"


async def _played(
    subject: EnvUnderTest, task: Task, speak: Speak, player: str, turns: int | None = None
) -> PlayedEpisode:
    episode = await play(subject, task, speak, turns=turns)
    sizes(subject, episode)
    in_range(subject, episode, player)
    failed(subject, episode)
    return episode


def failed(subject: EnvUnderTest, episode: PlayedEpisode) -> bool:
    """Whether a play without disturbances failed. Reports the failure."""
    failure = episode.failure
    if failure is None:
        return False
    place: Place = subject.place_of(failure)
    if failure.kind == "bug":
        subject.report.error("lifecycle", place, f"{failure.boundary} fails: {failure.error}", "fix it")
    else:
        needs = "; ".join(subject.cls.needs(subject.envs.config, 1)) or "what the error names"
        message = f"{failure.boundary} raises InfraError: {failure.error}"
        subject.report.error("lifecycle", place, message, f"start what the Env needs ({needs})")
    return True


def _nothing(task: Task, trajectory: Trajectory) -> Speech:
    while True:
        yield NOTHING
