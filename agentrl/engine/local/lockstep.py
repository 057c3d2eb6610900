"""Waves: batches whose composition does not depend on timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lockstep:
    """A fixed number of episodes that take their turns together; made by `LocalEngine.lockstep`.

    Floating-point results of a row depend, in the last bits, on the rows that it is computed with, and these on which
    request came first. In lockstep a batch starts only when each episode that has not left is waiting for its turn, and
    its rows are in the order of their content. Same weights, same prompts, same seeds: then same tokens and
    bit-identical log-probs, whatever the timing.
    """

    def __init__(self, episodes: int, changed: Callable[[], None]) -> None:
        self._episodes, self._entered, self._left = episodes, 0, 0
        self._changed = changed

    @property
    def alive(self) -> int:
        """Episodes that have not left, those not yet begun included."""
        return self._episodes - self._left

    @contextmanager
    def episode(self) -> Iterator[None]:
        """Everything one episode asks of the engine happens in here; however it ends, nobody waits for it any more.

        The body must not wait for another episode. Raises ValueError when more than the promised number enter.
        """
        if self._entered == self._episodes:
            raise ValueError(f"lockstep was promised {self._episodes} episodes, and one more has begun")
        self._entered += 1
        try:
            yield
        finally:
            self._left += 1
            self._changed()
