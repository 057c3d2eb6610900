"""The order of a run with `staleness`: episodes never stop. Each step learns from the finished groups.

    engine    ━━━━━━━━━━━━━┿━━━━━━━━━━┿━━━━━━━━   episodes go on over the updates of the weights (┿)
    learner   waits│update 1│update 2 │update 3

Fully asynchronous RL, as in AReaL (arXiv 2505.24298, with its bound on staleness).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from agentrl.engine.base import TrainedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.rollout.loop.group_loop import LOOK_S
from agentrl.rollout.loop.loop_drawer import LoopDrawer
from agentrl.rollout.play.in_flight import late, of_kind
from agentrl.rollout.play.waiting import waiting_for
from agentrl.train.config import TrainConfig
from agentrl.train.handover import HandOver
from agentrl.train.order import Collect, Played, PlayEvaluation, Update
from agentrl.train.report import AsyncReport
from agentrl.trajectory.spans import Span
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

T = TypeVar("T")
log = logging.getLogger("agentrl")

EVAL_SHARE = 0.25
"""The share of `concurrency` that an evaluation gets while training continues."""


class AsyncOrder:
    """Lets a loop play groups while the learner learns, and gives the engine new weights after each update.

    No token is trained at a greater age than `staleness`. An exception of an episode is raised by the next step.
    """

    def __init__(self, staleness: int, drawer: LoopDrawer, handover: HandOver, collect: Collect) -> None:
        self._staleness, self._drawer, self._handover, self._collect = staleness, drawer, handover, collect
        self._thread = LearnerThread()
        self._evaluating: tuple[int, asyncio.Task[Mapping[str, JSON]]] | None = None
        self._began = 0.0

    async def rollout(self, step: int) -> Played:
        """Wait for the groups of this step. The tokens of these groups that are older than `staleness` are masked."""
        await asyncio.sleep(0)  # a cancellation during the last update comes here
        self._began = time.monotonic()
        await self._give()
        handed = time.monotonic()
        self._drawer.begin(int(self._handover.engine_version), step - 1)
        groups = await self._collect(step)
        report = AsyncReport(trainer_wait_s=time.monotonic() - handed)
        step_rollout = Played(step, groups, hand_over_s=handed - self._began, async_report=report)
        ages = TokenAges(step, self._staleness)
        ages.mask_too_old(step_rollout.trajectories)
        report.token_age_mean, report.token_age_max = ages.mean_and_most(step_rollout.trajectories)
        return step_rollout

    async def learn(self, rollout: Played, update: Update) -> dict[str, Any]:
        """Update the weights, and give the new weights to the engine at once."""
        assert rollout.async_report is not None
        began = time.monotonic()
        metrics = await self._thread.run(lambda: update(rollout.groups, rollout.step))
        handed = time.monotonic()
        await self._give_beside()
        now = time.monotonic()
        rollout.hand_over_s, rollout.train_s = rollout.hand_over_s + now - handed, handed - began
        rollout.rollout_s = rollout.async_report.seconds = now - self._began
        return metrics

    async def aside(self, function: Callable[[], None]) -> None:
        await self._thread.run(function)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the context is open, no episode runs. The running episodes are cancelled, and their groups are played
        again."""
        await self._drawer.stop()
        self._handover.on_hold = False
        yield

    async def evaluate(self, step: int, evaluate: PlayEvaluation | None, *, last: bool) -> Mapping[str, JSON]:
        """Begin the evaluation of a step, in parallel with the episodes. Returns the metrics of an evaluation that has
        ended since the last call, with the evaluation's step as `eval_step`. Otherwise the result is empty. The last
        step, and a step with an evaluation, first wait for the running evaluation, with a limit."""
        metrics: Mapping[str, JSON] = {}
        if self._evaluating is not None and (last or evaluate is not None or self._evaluating[1].done()):
            of, task = self._evaluating
            ended = await self._has_ended(task)
            self._evaluating = None
            if ended:
                metrics = {**task.result(), "eval_step": of}
            else:
                log.warning("the evaluation of step %d is given up, and so are its metrics: see the lines above", of)
        if evaluate is not None:
            self._evaluating = step, asyncio.create_task(self._evaluate(evaluate))
        return metrics

    async def _has_ended(self, task: asyncio.Task[Mapping[str, JSON]]) -> bool:
        """Wait until an evaluation ends. Returns False if its last episodes take many times as long as the other
        episodes: the evaluation is cancelled then, because steps and checkpoints wait for its end."""
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_S)  # unlike `await task`, this does not cancel it with its waiter
            if not task.done() and (rest := of_kind("eval")) and len(late("eval")) == len(rest):
                await self._end(task)
                return False
        return True

    async def _end(self, task: asyncio.Task[Any]) -> None:
        with waiting_for("the end of the evaluation", "eval"):
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it has been seen

    async def _evaluate(self, evaluate: PlayEvaluation) -> Mapping[str, JSON]:
        slots = self._drawer.slots
        with slots.reserve(round(EVAL_SHARE * slots.total) or 1):
            return await evaluate()

    async def _give(self) -> None:
        """Give the engine the newest weights. At other times nobody gives weights: `on_hold` is set."""
        self._handover.on_hold = False
        await self._handover.give()
        self._handover.on_hold = True

    async def _give_beside(self) -> None:
        """Give the engine the weights of a finished step, and let the loop of episodes continue. The step is recorded
        even after an error here: the next checkpoint has the weights, so the groups must not be trained twice."""
        try:
            await self._give()
            self._drawer.loop.advance(int(self._handover.engine_version))
        except EngineError:
            pass  # the next rollout gives them again, and raises
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.cancel()  # comes at the next await

    async def stop(self) -> None:
        if self._evaluating is not None:
            _, task = self._evaluating
            self._evaluating = None
            await self._end(task)
        await self._drawer.stop()
        self._thread.close()


class LearnerThread:
    """A thread for all updates of the weights. The threads of the event loop may all be busy with blocking Envs."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "agentrl-learner")

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in the thread, and wait for its end. A cancellation during the call takes effect at the next
        await."""
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
    """The ages of the tokens that a step would train. The age of a token is the number of updates since its weights."""

    step: int
    most: int

    def mask_too_old(self, trajectories: Sequence[Trajectory]) -> None:
        """Mask the tokens whose age is above `most`, with the reason `off_policy`. With an engine that keeps to the
        order of the run, no token is so old."""
        for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
            old = [span for span in segment.spans if span.trained and self._age(span) > self.most]
            if old:
                mask = [1] * segment.response_length
                for span in old:
                    mask[span.start : span.stop] = [0] * (span.stop - span.start)
                segment.mask_where(mask, "off_policy")

    def mean_and_most(self, trajectories: Sequence[Trajectory]) -> tuple[float, int]:
        """The mean and the greatest age of the trained tokens; 0 and 0 without trained tokens."""
        spans = [span for t in trajectories for segment in t.segments for span in segment.spans if span.trained]
        ages = [(self._age(span), span.stop - span.start) for span in spans]
        tokens = sum(count for _, count in ages)
        return sum(age * count for age, count in ages) / max(tokens, 1), max((age for age, _ in ages), default=0)

    def _age(self, span: Span) -> int:
        """The number of updates since the weights that sampled a span. Raises EngineError if the engine reports no
        version."""
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
