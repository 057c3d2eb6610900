"""The proof of a door: a host's episode is replayed through `run_episode`, and each difference gets a name.

    host = HostEpisode(task, turns=[HostTurn(prompt_ids, sampled_ids, log_probs)], rows=[...], reward=1.0)
    for difference in await differences(host, MyEnv(), renderer):
        print(difference)

The replay samples nothing: a ScriptedEngine plays the ids that the host sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env.env import Env
from agentrl.episode.options import EpisodeOptions, RewardFn
from agentrl.episode.run import run_episode
from agentrl.errors import EngineError
from agentrl.render.base import Renderer
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import FinishReason, Generation, StopReason, Task

DifferenceName: TypeAlias = Literal["prompt", "turns", "rows", "ids", "mask", "log_probs", "reward", "stop", "failure"]
"""prompt: the model reads other tokens before a turn. turns: the host ends earlier or later. rows: another number of
sequences is trained. ids, mask, log_probs: a trained sequence differs. reward, stop: the end differs. failure: only one
side has a failed episode, or a failed episode counts as a reward."""

TOLERANCE = 1e-5
"""The largest difference of two log-probs that count as equal, and of two rewards. Hosts store float32."""


@dataclass(frozen=True, slots=True)
class HostTurn:
    """A turn as the host sampled it."""

    input_ids: Sequence[int]
    """All tokens before the turn."""
    tokens: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class HostRow:
    """A sequence that the host trains. All fields have the shape [length of prompt and response]."""

    tokens: Sequence[int]
    loss_mask: Sequence[float]
    """Not 0 for trained tokens."""
    log_probs: Sequence[float]
    """Only the values of trained tokens are compared."""


@dataclass(frozen=True, slots=True)
class HostEpisode:
    """An episode as the host recorded it."""

    task: Task
    turns: Sequence[HostTurn]
    rows: Sequence[HostRow] | None = None
    """None: the host keeps no rows, and no rows are compared."""
    reward: float | None = None
    """None: the host counts the episode as failed, or keeps no reward."""
    stop: StopReason | None = None
    """None: the host keeps no reason to stop."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a host's episode and the replay."""

    name: DifferenceName
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


@dataclass(slots=True)
class _HostScript:
    """The host's turns as a script of a ScriptedEngine. Each prompt of the replay is compared."""

    turns: Sequence[HostTurn]
    played: int = 0
    differences: list[Difference] = field(default_factory=list)

    def __call__(self, input_ids: Sequence[int]) -> Generation | Exception:
        if self.played == len(self.turns):
            return self._departs("turns", f"the host ends after {self.played} turns, and agentrl goes on")
        turn = self.turns[self.played]
        if (first := _first_difference(turn.input_ids, input_ids)) is not None:
            return self._departs("prompt", f"before turn {self.played + 1}, {first}")
        self.played += 1
        return Generation(turn.tokens, turn.log_probs, turn.finish_reason)

    def _departs(self, name: DifferenceName, detail: str) -> Exception:
        self.differences.append(Difference(name, detail))
        return EngineError(f"the replay departs from the host: {detail}")


async def differences(
    host: HostEpisode,
    env: Env,
    renderer: Renderer,
    *,
    options: EpisodeOptions | None = None,
    reward: RewardFn | None = None,
    context_length: int = 1 << 20,
    tolerance: float = TOLERANCE,
) -> list[Difference]:
    """Replay an episode of the host in a new Env, and return all differences. [] if there are none.

    After a different prompt or a missing turn the replay cannot go on, so only this difference is returned. Raises the
    errors of `run_episode`.
    """
    script = _HostScript(host.turns)
    engine = ScriptedEngine(script, renderer, context_length=context_length)
    trajectory = await run_episode(env, host.task, engine=engine, renderer=renderer, options=options, reward=reward)
    if script.differences:
        return script.differences
    if not trajectory.is_valid:
        trajectory.mask("env_failure")
    return [*_of_turns(script), *_of_rows(host, trajectory, tolerance), *_of_end(host, trajectory, tolerance)]


def _of_turns(script: _HostScript) -> Iterator[Difference]:
    if script.played < len(script.turns):
        yield Difference("turns", f"the host has {len(script.turns)}, and agentrl ends after {script.played}")


def _of_rows(host: HostEpisode, trajectory: Trajectory, tolerance: float) -> Iterator[Difference]:
    if host.rows is None:
        return
    segments = [segment for segment in trajectory.segments if segment.response_length]
    if not segments:
        if any(any(row.loss_mask) for row in host.rows):
            yield Difference("mask", "the host trains an episode without a turn")
        return
    if len(segments) != len(host.rows):
        yield Difference("rows", f"the host has {len(host.rows)}, and agentrl {len(segments)}")
        return
    for number, (row, segment) in enumerate(_paired(host.rows, segments), 1):
        yield from _of_row(row, segment, f"row {number}, ", tolerance)


def _paired(rows: Sequence[HostRow], segments: Sequence[Segment]) -> Iterator[tuple[HostRow, Segment]]:
    """Each row with its segment. The order of rows makes no difference for training."""
    if [[*row.tokens] for row in rows] == [segment.tokens for segment in segments]:
        return zip(rows, segments, strict=True)
    rows = sorted(rows, key=lambda row: [*row.tokens])
    return zip(rows, sorted(segments, key=lambda segment: segment.tokens), strict=True)


def _of_row(row: HostRow, segment: Segment, where: str, tolerance: float) -> Iterator[Difference]:
    if (first := _first_difference(row.tokens, segment.tokens)) is not None:
        yield Difference("ids", where + first)
        return
    prompt = [0] * segment.prompt_length
    mask = [*prompt, *segment.loss_mask]
    if (first := _first_difference([int(value != 0) for value in row.loss_mask], mask)) is not None:
        yield Difference("mask", where + first)
        return
    pairs = zip(row.log_probs, [*map(float, prompt), *segment.log_probs], mask, strict=True)
    worst = max((abs(theirs - ours) for theirs, ours, trained in pairs if trained), default=0.0)
    if not worst <= tolerance:  # also for NaN
        yield Difference("log_probs", f"{where}the largest difference is {worst:.2g}")


def _of_end(host: HostEpisode, trajectory: Trajectory, tolerance: float) -> Iterator[Difference]:
    if trajectory.is_valid != (host.reward is not None):
        cause = trajectory.failure.error if trajectory.failure else trajectory.stop
        here = "no failure" if trajectory.is_valid else f"a failure ({cause})"
        there = "a failure" if host.reward is None else f"the reward {host.reward:g}"
        yield Difference("failure", f"the host has {there}, and agentrl has {here}")
    elif host.reward is not None:
        ours = trajectory.reward or 0.0  # an episode without a reward counts as 0 beside scored episodes
        if not abs(host.reward - ours) <= tolerance:
            yield Difference("reward", f"the host has {host.reward:g}, and agentrl {ours:g}")
    if host.stop is not None and host.stop is not trajectory.stop:
        yield Difference("stop", f"the host has {host.stop}, and agentrl {trajectory.stop}")


def _first_difference(theirs: Sequence[int], ours: Sequence[int]) -> str | None:
    """The first different place of two sequences of numbers, in words. None if they are equal."""
    theirs, ours = [*theirs], [*ours]
    if theirs == ours:
        return None
    place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), None)
    if place is None:
        return f"the host has {len(theirs)} tokens, and agentrl {len(ours)}"
    return f"token {place}: the host has {theirs[place]}, and agentrl {ours[place]}"
