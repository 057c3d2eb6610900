"""The door to TRL's AsyncGRPOTrainer: agentrl plays ahead on a copy of the weights, and TRL trains.

    rollouts = TRLAsyncRollouts("my_env.py:MyEnv", model="Qwen/Qwen3-0.6B", limits={"turns": 4})
    trainer = AsyncGRPOTrainer(
        "Qwen/Qwen3-0.6B",
        rollout_worker=rollouts,
        weight_transfer=rollouts,
        train_dataset=rollouts.dataset(),
        args=AsyncGRPOConfig(token_budget=8192, ...),
    )

Written for TRL 1.16.0. Ids, mask, log-probs and advantages are agentrl's, and each sequence of an episode is a row. The
engine is LocalEngine on a copy of the weights, so no vLLM server runs. A failed episode has no row, and does not count
in the mean of the group. TRL drops rows that are older than `max_staleness`, and TRL's `temperature` must stay 1. TRL
trains on GPUs alone: the attention needs FlashAttention 3.

lost here: images; seats; rewards of single turns; the reason for a mask; the evaluation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from queue import Queue
from random import Random
from typing import TYPE_CHECKING, Any

from agentrl.env.env import Env
from agentrl.hosts.turned import HostedEnv
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Task
from agentrl.workers.threads import LoopThread

if TYPE_CHECKING:
    from torch import Tensor

VERSION = "1.16.0"


class TRLAsyncRollouts(HostedEnv):
    """An Env as both the `rollout_worker` and the `weight_transfer` of AsyncGRPOTrainer. `settings` are the keys of
    `DoorConfig`. Raises ConfigError.

    `model` is the model that TRL trains. A task is played `group_size` times. At most `ahead` groups are in play or
    wait for the trainer. `device` is the place of the copy of the weights. Default: the CPU.
    """

    def __init__(
        self,
        env: str | type[Env],
        *,
        model: str,
        group_size: int = 8,
        ahead: int = 8,
        seed: int = 0,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        from agentrl.engine.local import LocalEngine
        from agentrl.models import load_model, load_tokenizer

        super().__init__(env, model=model, **settings)
        self.group_size, self.seed, self.version = group_size, seed, 0
        self.rollout_buffer, self.metrics_queue = _Rows(self._taken), Queue[dict[str, float]]()
        self._engine = LocalEngine(load_model(model), load_tokenizer(model), device=device)
        self._left, self._slots = Counter[int](), asyncio.Semaphore(ahead)
        self._thread = LoopThread("agentrl in TRL")
        self._playing: asyncio.Task[None] | None = None

    def dataset(self) -> Any:
        """The data set that TRL asks for, and does not read: agentrl draws the tasks."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": task.id} for task in self.tasks()])

    def init_weight_transfer(self) -> None:
        """Do nothing: the copy of the weights exists."""

    def pause(self) -> None:
        """Do nothing: weights change between two tokens of the running episodes."""

    def send_weights(self, iterator: Iterable[tuple[str, Tensor]]) -> None:
        """Copy TRL's weights into the engine."""
        self._engine.load_part(dict(iterator), f"{self.version + 1}")

    def resume(self) -> None:
        """Do nothing; see `pause`."""

    def destroy(self) -> None:
        """Do nothing: `stop` has ended the episodes."""

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version

    def start(self) -> None:
        """Begin to play."""
        self._thread.run_here(self._start())

    def stop(self) -> None:
        """End the episodes, and wait until their Envs are closed. Safe to call twice."""
        if self._playing is not None:
            self._thread.run_here(self._stop(self._playing))

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error that ended the rollouts: ConfigError, or BugError for a bug of the Env."""
        if self._playing is not None and self._playing.done():
            self._playing.result()

    async def _start(self) -> None:
        opened = await self.opened()
        rollout = Rollout(
            envs=opened.factory,
            engine=self._engine,
            renderer=await self.renderer(),
            options=self.config.options(),
            reward=self.config.reward_function(),
        )
        self._playing = opened.start(self.play_all(rollout))

    async def _stop(self, playing: asyncio.Task[None]) -> None:
        playing.cancel()
        await asyncio.wait([playing])

    async def play_all(self, rollout: Rollout) -> None:
        """Play groups of random tasks until the trainer stops."""
        try:
            async with asyncio.TaskGroup() as groups:
                for number, task in enumerate(self._endless()):
                    await self._slots.acquire()
                    groups.create_task(self.play_group(rollout, number, task))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _endless(self) -> Iterator[Task]:
        tasks, rng = self.tasks(), Random(self.seed)
        for _ in count():
            yield from rng.sample(tasks, len(tasks))

    async def play_group(self, rollout: Rollout, number: int, task: Task) -> None:
        """Play the episodes of a task, and give the rows to the trainer."""
        version = self.version
        (group,) = await run_groups(
            rollout, [task], self.group_size, name="trl-async", seed=self.seed, first=number, keep_unscored=True
        )
        rows = [*_rows(group, version, number)]
        self._left[number] = len(rows)
        for row in rows:
            self.rollout_buffer.put(row)
        if not rows:
            self._slots.release()

    def _taken(self, group: int) -> None:
        """The trainer has taken a row of a group. After the last row, another group may begin."""
        self._left[group] -= 1
        if not self._left[group] and self._playing is not None:
            del self._left[group]
            self._playing.get_loop().call_soon_threadsafe(self._slots.release)


class _Rows(Queue[Any]):
    """The rows for the trainer. Calls `taken` with the number of the group for each row that the trainer takes."""

    def __init__(self, taken: Any) -> None:
        super().__init__()
        self._call = taken

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        row = super().get(block, timeout)
        self._call(row.group_id)
        return row


def _rows(group: list[Trajectory], version: int, number: int) -> Iterator[Any]:
    """TRL's rows of a group: each sequence with a trained token."""
    import numpy as np
    import torch
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    from agentrl.train.loss import group_advantages

    valid = torch.tensor([[trajectory.is_valid for trajectory in group]])
    rewards = torch.tensor([[trajectory.reward or 0.0 for trajectory in group]])
    advantages = group_advantages(rewards, valid).values[0].tolist()
    for trajectory, advantage in zip(group, advantages, strict=True):
        for segment in trajectory.segments if trajectory.is_valid else ():
            before = segment.prompt_length
            if any(segment.loss_mask):
                yield RolloutSample(
                    prompt=[],
                    completion=[*trajectory.messages],
                    input_ids=np.array(segment.tokens),
                    completion_mask=np.array([0] * before + segment.loss_mask),
                    old_log_probs=np.array([0.0] * before + segment.log_probs, dtype=np.float32),
                    advantage=advantage,
                    model_version=version,
                    group_id=number,
                    metrics={"reward": trajectory.reward or 0.0},
                )
