"""Errors that would break every episode (a wrong configuration) end the run, even where slime would swallow them.

An exception from a generate function ends slime's rollout and its evaluation. But slime's fully-async rollout, miles'
default rollout and users' rollouts may log the exception, drop the group and draw the next prompt, forever. So after
the first such error agentrl plays no more episodes for these arguments. It returns samples whose reward raises the
error when read. The rollout completes at once, and the first reader of a reward (slime's metrics, its conversion, a
hook) raises the error. A filter may drop the samples unread. So after some samples `adapt` raises the error again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Never

from agentrl.errors import Boundary, ConfigError, Failure
from agentrl.slime.host import HostArgs, session_of
from agentrl.slime.sample import clear, to_sample
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason, Task

log = logging.getLogger("agentrl")

_said: set[str] = set()
_PAUSE_S = 1.0
"""Seconds before an error is raised again. Without a pause, a rollout that swallows each error would draw prompts
without end."""
SWALLOWED = 16
"""How many times an error is raised again, to end the run, before EndedRun is raised."""


class EndedRun(BaseException):
    """Ends the run. A BaseException also ends rollouts that swallow every Exception and drop failed groups."""


@dataclass(slots=True)
class _EndedRun:
    """A run that an error has ended."""

    args: Any
    config: str
    """agentrl's configuration at the time of the error. A different configuration, as in a notebook, is a different
    run."""
    error: Exception
    samples: int = 0
    """The number of samples returned since the error."""


_ended: list[_EndedRun] = []


def end_run(args: Any, error: Exception) -> None:
    """Record an error that ends the run: no further episode is played for these arguments."""
    if _ended_run(args) is None:
        _ended.append(_EndedRun(args, repr(HostArgs.of(args).agentrl), error))


async def ended_sample(args: Any, sample: Any) -> Any:
    """The sample with the reward NoReward if an error has ended the run. None if the run continues.

    Raises the error if two rollouts' samples were returned, and no reward of them was read. Where the rollout swallows
    the error, too, raises EndedRun.
    """
    run = _ended_run(args)
    if run is None:
        return None
    flags = HostArgs.of(args)
    run.samples += 1
    unread = 2 * flags.n_samples_per_prompt * max(flags.rollout_batch_size, flags.over_sampling_batch_size)
    if run.samples > unread:
        await asyncio.sleep(_PAUSE_S)
        if run.samples > unread + SWALLOWED:
            raise EndedRun(_text(run.error)) from run.error
        raise run.error
    return failed_sample(sample, run.error)


def _ended_run(args: Any) -> _EndedRun | None:
    runs = [run for run in _ended if run.args is args]
    return next((run for run in runs if run.config == repr(HostArgs.of(args).agentrl)), None)


class NoReward(dict[str, str]):
    """The reward of an unplayed sample: a mapping with the error. Every use as a reward raises the error.

    The class is a mapping because slime's queue (0.4, data/codec.py) writes plain values only. The queue returns a
    plain dict, with which slime cannot compute either. So a missing reward is never trained silently.
    """

    def __init__(self, message: str) -> None:
        super().__init__(error=message)

    def _read(self, *_: Any) -> Never:
        raise ConfigError(self.get("error"))

    __float__ = __int__ = __index__ = __round__ = __getitem__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _read


def check_played(samples: Iterable[Any]) -> None:
    """Raises ConfigError if a sample could not be played. slime 0.4 calls filters in fully-async rollouts, and a filter
    that drops failed groups would drop groups for ever."""
    for sample in samples:
        if isinstance(sample.reward, NoReward):
            float(sample.reward)


def log_once(error: Exception) -> None:
    """Log an error as a single line, only once in a process. slime itself may show many tracebacks, or none.

    An error outside of the configuration is a bug, so its traceback is logged.
    """
    if (text := _text(error)) not in _said:
        _said.add(text)
        log.error("the run cannot go on: %s", text, exc_info=None if isinstance(error, ConfigError) else error)


def failed_episode(task: Task, session_id: str, exc: BaseException, boundary: Boundary) -> Trajectory:
    """A failed episode, for an error outside of the calls in which an episode handles errors."""
    log.warning("episode %s failed in %s", session_id, boundary, exc_info=exc)
    trajectory = Trajectory(task, session_id=session_id)
    trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, boundary)
    return trajectory


def failed_sample(sample: Any, error: Exception) -> Any:
    """Turn the sample of an unplayed episode into a failed, masked sample with the reward NoReward."""
    trajectory = Trajectory(Task(prompt=""), session_id=session_of(sample))
    trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(error, "share")
    clear(sample)
    to_sample(trajectory, sample, decode=lambda _: "")
    sample.reward = NoReward(_text(error))
    return sample


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"
