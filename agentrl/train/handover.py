"""The hand-over of weights from the learner to the engine, before each rollout. The first hand-over is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.engine.base import TrainedEngine
from agentrl.monitor import NumericsWatch
from agentrl.train.batch import episode_rows
from agentrl.train.learner import Learner, Update
from agentrl.trajectory.trajectory import Trajectory, total_ledger


class HandOver:
    """Gives the learner's weights to the engine. The engine has no weights before the first `give`, and after each
    `rest`."""

    def __init__(self, engine: TrainedEngine, learner: Learner) -> None:
        self.version = "0"
        """The version of the learner's weights: the number of the step that computed the weights."""
        self.engine_version = "-1"
        """The version of the engine's weights; "-1" before the first `give`."""
        self.on_hold = False
        """Whether `give` does nothing for now, because episodes are played, or because the learner changes its
        weights."""
        self._engine, self._learner = engine, learner
        self._is_given = False
        self._compared = False

    def changed(self, version: str) -> None:
        """Record that the learner's weights have changed, and have a new version."""
        self.version, self._is_given = version, False

    async def give(self) -> None:
        """Wake the engine, and give the engine the learner's weights. Does nothing if the engine has the weights, or if
        `on_hold` is set."""
        if not self._is_given and not self.on_hold:
            await self._engine.wake()
            await self._engine.update(self._learner.model, self.version)
            self._is_given, self.engine_version = True, self.version

    async def rest(self) -> None:
        """Let the engine sleep, because the learner needs the device."""
        self._is_given = False
        await self._engine.sleep()

    def compare(
        self, trajectories: Sequence[Trajectory], watch: NumericsWatch, step: int, warn: Callable[[str], None]
    ) -> None:
        """Compare the engine's log-probs of an episode with the learner's, in the first step of this process.

        Raises CanaryError if the log-probs are far apart: the engine has a different model, or lacks the new weights.
        """
        trained = [trajectory for trajectory in trajectories if total_ledger(trajectory.segments).trained]
        if self._compared or not trained:
            return
        self._compared = True
        shortest, update = min(trained, key=lambda trajectory: trajectory.segment.length), Update(0.0)
        self._learner.apply_tis(episode_rows(shortest, [1.0] * len(shortest.turns)), 1.0, update)
        numerics = update.numerics
        for warning in watch.watch(f"step {step}, before it is trained", numerics.mean, numerics.max):
            warn(warning)
