"""The order of a run with `staleness`: the rollouts of later steps are played while the learner learns.

    engine    rollout 1 │ rollout 2 │ rollout 3 │ ...      with `staleness: 1`
    learner             │ update 1  │ update 2  │ ...

One-step off-policy RL, as in AReaL (arXiv 2505.24298, with its bound on staleness) and in verl's one_step_off_policy. A
rollout samples from a single version of the weights: the hand-over happens only between two rollouts and between two
updates. A rollout begins when its tokens cannot become older than the bound.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from agentrl.engine.base import TrainedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.train.config import TrainConfig
from agentrl.train.handover import HandOver
from agentrl.train.order import Collect, Played, PlayEvaluation, StepEnd, Update, evaluate_between
from agentrl.train.report import OverlapReport
from agentrl.trajectory.spans import Span
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

T = TypeVar("T")


class Overlap:
    """Plays at most `staleness` rollouts more than the learner has learned from. No token is trained at a greater age.

    The age of a token is the number of updates between the weights that sampled the token and the weights that learn
    from the token. An exception of a rollout is raised by the step that would learn from the rollout, or by the
    evaluation before.
    """

    def __init__(
        self, staleness: int, steps: int, handover: HandOver, collect: Collect, state: Callable[[], StepEnd]
    ) -> None:
        self._staleness, self._steps = staleness, steps
        self._handover, self._collect, self._state = handover, collect, state
        self._thread = LearnerThread()
        self._next = 0
        """The step of the next rollout to begin; 0 before the first."""
        self._ready: deque[Played] = deque()
        self._playing: asyncio.Task[None] | None = None
        """Plays rollouts, or has failed."""
        self._stopping = False
        """Whether no rollout may begin without new weights."""
        self._idle_since: float | None = None
        self._began = 0.0

    async def rollout(self, step: int) -> Played:
        """Wait for the rollout of this step. Tokens that are too old are masked."""
        await asyncio.sleep(0)  # a cancellation during the last update comes here
        self._began = time.monotonic()
        self._next, self._steps = self._next or step, max(self._steps, step)
        self._stopping = True
        while not self._ready:
            await self._proceed()
            await self._wait()
        self._stopping = False
        step_rollout = self._ready.popleft()
        assert step_rollout.overlap is not None
        step_rollout.overlap.trainer_wait_s = time.monotonic() - self._began
        ages = TokenAges(step, self._staleness)
        ages.mask_too_old(step_rollout.trajectories)
        step_rollout.overlap.token_age_mean, step_rollout.overlap.token_age_max = ages.mean_and_most(
            step_rollout.trajectories
        )
        return step_rollout

    async def learn(self, rollout: Played, update: Update) -> dict[str, Any]:
        """Let the next rollout begin with the present weights, and change the weights meanwhile."""
        assert rollout.overlap is not None
        began = time.monotonic()
        await self._proceed()
        handed = time.monotonic()
        metrics = await self._thread.run(lambda: update(rollout.groups, rollout.step))
        now = time.monotonic()
        rollout.hand_over_s, rollout.train_s = handed - began, now - handed
        rollout.overlap.seconds = now - self._began
        return metrics

    async def aside(self, function: Callable[[], None]) -> None:
        """Call the function in the learner's thread: the event loop must not stand still while episodes are played."""
        await self._thread.run(function)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        self._stopping = True
        await self._wait()
        paused = time.monotonic()
        self._handover.on_hold = False
        yield
        self._handover.on_hold, self._stopping = True, False
        if self._idle_since is not None:
            self._idle_since += time.monotonic() - paused

    async def evaluate(self, step: int, evaluate: PlayEvaluation | None, *, last: bool) -> Mapping[str, JSON]:
        return await evaluate_between(self, evaluate)

    async def stop(self) -> None:
        if (task := self._playing) is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # it has been seen
        self._thread.close()

    async def _wait(self) -> None:
        """Wait until no rollout is played. Raises the error of a failed rollout."""
        if self._playing is not None:
            await asyncio.wait([self._playing])  # unlike `await task`, this does not cancel it with its waiter
            self._playing.result()
            self._playing = None

    async def _proceed(self) -> None:
        """Between two updates: give an idle engine the weights, and begin the next rollout if the bound allows."""
        if self._playing is not None and self._playing.done() and self._playing.exception() is None:
            self._playing = None
        if self._playing is None and self._next <= self._steps:
            self._handover.on_hold = False
            await self._handover.give()
            self._handover.on_hold = True
            if self._may_begin():
                self._playing = asyncio.create_task(self._play())

    def _may_begin(self) -> bool:
        return self._next <= self._steps and self._next - 1 - int(self._handover.engine_version) <= self._staleness

    async def _play(self) -> None:
        """Play rollouts in sequence, until the next rollout needs newer weights."""
        while True:
            began = time.monotonic()
            waited = 0.0 if self._idle_since is None else began - self._idle_since
            groups = await self._collect(self._next)
            self._idle_since = now = time.monotonic()
            report = OverlapReport(engine_wait_s=waited)
            self._ready.append(Played(self._next, groups, self._state(), rollout_s=now - began, overlap=report))
            self._next += 1
            if self._stopping or not self._may_begin():
                return


class LearnerThread:
    """A thread for all updates. The event loop's threads may all be busy with blocking Envs."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "agentrl-learner")

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in the thread, to its end. A cancellation meanwhile takes effect at the next await."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, function)
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled and (task := asyncio.current_task()) is not None:
            task.cancel()
        return running.result()

    def close(self) -> None:
        self._thread.shutdown(wait=False)


@dataclass(frozen=True, slots=True)
class TokenAges:
    """The ages of the tokens that a step would train."""

    step: int
    most: int

    def mask_too_old(self, trajectories: Sequence[Trajectory]) -> None:
        """Mask tokens that are older than `most`, as `off_policy`. An engine that keeps to the run's order has none."""
        for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
            old = [span for span in segment.spans if span.trained and self._age(span) > self.most]
            if old:
                mask = [1] * segment.response_length
                for span in old:
                    mask[span.start : span.stop] = [0] * (span.stop - span.start)
                segment.mask_where(mask, "off_policy")

    def mean_and_most(self, trajectories: Sequence[Trajectory]) -> tuple[float, int]:
        """The mean age of the trained tokens, and the greatest; 0 without any."""
        spans = [span for t in trajectories for segment in t.segments for span in segment.spans if span.trained]
        ages = [(self._age(span), span.stop - span.start) for span in spans]
        tokens = sum(count for _, count in ages)
        return sum(age * count for age, count in ages) / max(tokens, 1), max((age for age, _ in ages), default=0)

    def _age(self, span: Span) -> int:
        """Updates since the weights of a span. Raises EngineError if the engine does not report the weights."""
        version = span.weight_version or ""
        if not version.isdecimal():
            raise EngineError(
                f"staleness needs the version of each token's weights, and the engine reports {version!r}"
            )
        return self.step - 1 - int(version)


def check_own_weights(engine: TrainedEngine, config: TrainConfig) -> None:
    """Raises ConfigError unless an engine can play while the learner's weights change."""
    if not getattr(engine, "own_weights", False):
        raise ConfigError(
            f"staleness is {config.staleness}, and engine {config.engine} cannot play while the weights change, unless "
            "its class says own_weights = True: use local or sglang, or staleness 0"
        )


@contextmanager
def half_the_threads() -> Iterator[None]:
    """While the context is open, torch uses half of its threads here. An engine on the same CPU gets the other half."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads // 2, 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
