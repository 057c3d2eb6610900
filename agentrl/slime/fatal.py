"""Errors that would break every episode (a wrong configuration) end the run, even where slime would swallow them.

An exception from a generate function ends slime's rollout and its evaluation. But slime's fully-async rollout logs the
exception, drops the group and draws the next prompt, forever. There agentrl returns a sample whose reward raises the
error when it is read. The rollout completes, and the first reader of the reward (slime's metrics, its conversion, a
hook) raises the error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Never

from agentrl.errors import Boundary, ConfigError, Failure
from agentrl.slime.sample import clear, to_sample
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason, Task

log = logging.getLogger("agentrl")

_said: set[str] = set()


class NoReward(dict[str, str]):
    """The reward of a sample that could not be played: a mapping with the error. Every use as a reward raises it.

    It is a mapping because slime's queue (0.4, data/codec.py) writes plain values only. What comes out of the queue is
    a plain mapping, with which slime cannot compute either. So a missing reward is never trained in silence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(error=message)

    def _read(self, *_: Any) -> Never:
        raise ConfigError(self.get("error"))

    __float__ = __int__ = __index__ = __round__ = __getitem__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _read


def check_played(samples: Iterable[Any]) -> None:
    """Raises ConfigError if one of the samples could not be played. slime 0.4 calls filters in fully-async, where a
    filter that drops what failed would drop for ever."""
    for sample in samples:
        if isinstance(sample.reward, NoReward):
            float(sample.reward)


def log_once(error: Exception) -> None:
    """Log the error as one line, once in a process. A host may show many tracebacks, or none.

    An error that is not about the configuration is a bug, so it is logged with its traceback.
    """
    if (text := _text(error)) not in _said:
        _said.add(text)
        log.error("the run cannot go on: %s", text, exc_info=None if isinstance(error, ConfigError) else error)


def failed_episode(task: Task, session_id: str, exc: BaseException, boundary: Boundary) -> Trajectory:
    """An episode that an error ended outside of its own boundaries."""
    log.warning("episode %s failed in %s", session_id, boundary, exc_info=exc)
    trajectory = Trajectory(task, session_id=session_id)
    trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, boundary)
    return trajectory


def failed_sample(sample: Any, error: Exception) -> Any:
    """Turn the sample of an episode that could not be played into a failed, masked one with the reward NoReward."""
    trajectory = Trajectory(Task(prompt=""), session_id=getattr(sample, "session_id", None) or "")
    trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(error, "share")
    clear(sample)
    to_sample(trajectory, sample, decode=lambda _: "")
    sample.reward = NoReward(_text(error))
    return sample


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"
