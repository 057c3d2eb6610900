"""What no episode could outlive, as an error of the configuration, ends the run, also where slime would swallow it.

slime's rollout and its evaluation end with what a generate function raises. Its fully-async rollout logs that, drops
the group and draws the next prompt, for ever. There the sample goes on to slime with a reward that cannot be read: the
rollout completes, and whoever first reads a reward of it (slime's metrics, its conversion, a hook) raises the error.
"""

from __future__ import annotations

import logging
from typing import Any, Never

from agentrl.errors import ConfigError, Failure
from agentrl.slime.sample import clear, to_sample
from agentrl.trajectory import Trajectory
from agentrl.types import StopReason, Task

log = logging.getLogger("agentrl")

_said: set[str] = set()


class NoReward:
    """The reward of a sample that could not be played. Whatever is done with it raises ConfigError."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __repr__(self) -> str:
        return f"NoReward({self.message!r})"

    def _read(self, *_: Any) -> Never:
        raise ConfigError(self.message)

    __float__ = __int__ = __index__ = __round__ = __getitem__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _read


def say(error: Exception) -> None:
    """One line at error level, once a process: a host may show a traceback of many, or drop it.

    What is no error of the configuration is a bug, and has its traceback.
    """
    if (text := _text(error)) not in _said:
        _said.add(text)
        log.error("the run cannot go on: %s", text, exc_info=None if isinstance(error, ConfigError) else error)


def refused(sample: Any, error: Exception) -> Any:
    """The sample of an episode that could not be played: failed, masked, and without a reward."""
    trajectory = Trajectory(Task(prompt=""), session_id=getattr(sample, "session_id", None) or "")
    trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(error, "share")
    clear(sample)
    to_sample(trajectory, sample, decode=lambda _: "")
    sample.reward = NoReward(_text(error))
    return sample


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"
