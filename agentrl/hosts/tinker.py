"""The door to Tinker: an Env and an EnvGroupBuilder of tinker-cookbook, at the level of tokens.

    rollouts = TinkerRollouts(
        "my_env.py:MyEnv", model="Qwen/Qwen3-8B", limits={"context": 32768}, batch_size=16, group_size=8
    )
    config = train.Config(dataset_builder=rollouts, ...)  # of tinker_cookbook.rl

Written for tinker-cookbook 0.6.1 and tinker 0.38.0. The host samples; the tokens of the prompts are agentrl's. The same
objects serve Tinker's service and a local server of its API, such as SkyRL's. A failed episode raises InfraError, so
choose a rollout strategy such as RetryOnFailure; the default, FailFast, ends the run.

lost here: images; seats; stop strings of the Env; masks of single tokens (a whole turn can be masked, nothing else);
rewards of single turns (the last turn gets the whole reward); the failure, but for its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from agentrl.env.env import Env
from agentrl.errors import ConfigError, InfraError
from agentrl.hosts.turned import HostedEnv, TokenRequest, TurnedEpisode, generation
from agentrl.types import FinishReason, Generation, StopReason, Task

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import StepResult

VERSION = "0.6.1"
_STOPS: Mapping[StopReason, str] = {
    StopReason.DONE: "completed",
    StopReason.MAX_TURNS: "max_turns",
    StopReason.TURN_MAX_TOKENS: "max_tokens",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.CONTEXT_FULL: "context_overflow",
    StopReason.BAD_CALLS: "parse_error",
    StopReason.DEADLINE: "rollout_timeout",
}
"""agentrl's reason to stop -> the cookbook's name."""


class TinkerRollouts(HostedEnv):
    """An Env as the `dataset_builder` of the cookbook's training. Can be pickled. Raises ConfigError.

    `settings` are the keys of `DoorConfig`. `model` names the tokenizer, and `limits.context` is the length of a
    sequence that the service takes. A batch has `batch_size` tasks, and each is played `group_size` times. The tasks
    for training come `epochs` times, each time in another order.
    """

    def __init__(
        self,
        env: str | type[Env],
        *,
        batch_size: int = 16,
        group_size: int = 8,
        epochs: int = 1,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(env, **settings)
        if "context" not in self.config.limits:
            raise ConfigError('say how long a sequence may be, as the service takes it: limits={"context": 32768}')
        self.batch_size, self.group_size = batch_size, group_size
        self.epochs, self.seed = epochs, seed

    async def __call__(self) -> tuple[TinkerDataset, TinkerDataset | None]:
        """The data sets for training and for evaluation, the latter only if the tasks are the Env's own."""
        held_out = None if self.config.data else self.dataset("eval")
        return self.dataset("train"), held_out

    def dataset(self, split: Literal["train", "eval"]) -> TinkerDataset:
        """The tasks of a split in batches. An evaluation plays each task once. Raises ConfigError."""
        tasks, size = self.tasks(split), 1
        if split == "train":
            rng, size = Random(self.seed), self.group_size
            tasks = [task for _ in range(self.epochs) for task in rng.sample(tasks, len(tasks))]
        return TinkerDataset([TinkerGroupBuilder(self, task, size) for task in tasks], self.batch_size)


@dataclass(frozen=True, slots=True)
class TinkerDataset:
    """The cookbook's RLDataset."""

    builders: Sequence[TinkerGroupBuilder]
    batch_size: int

    def get_batch(self, index: int) -> Sequence[TinkerGroupBuilder]:
        return self.builders[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.builders) // self.batch_size)


@dataclass(slots=True)
class TinkerGroupBuilder:
    """The cookbook's EnvGroupBuilder: a task that is played several times. Can be pickled."""

    hosted: HostedEnv
    task: Task
    group_size: int
    envs: list[TinkerEnv] = field(default_factory=list)
    """The Envs of the running episodes. Empty in a pickled builder."""

    async def make_envs(self) -> Sequence[TinkerEnv]:
        made = [TinkerEnv(self.hosted, self.task) for _ in range(self.group_size)]
        self.envs += made
        return made

    async def compute_group_rewards(
        self, trajectory_group: Sequence[Any], env_group: Sequence[Any]
    ) -> list[tuple[float, dict[str, float]]]:
        """Nothing is added to the rewards of the episodes."""
        return [(0.0, {}) for _ in trajectory_group]

    async def cleanup(self) -> None:
        """Close the Envs of episodes that the host has dropped."""
        envs, self.envs = self.envs, []
        for env in envs:
            await env.close()

    def logging_tags(self) -> list[str]:
        return [self.hosted.factory().cls.__name__]


class TurnBudget:
    """The cookbook's RolloutLimits, with the number of tokens that agentrl's limits leave for the next turn. The other
    limits of the cookbook are None, because `limits` of the Env's settings hold."""

    def __init__(self) -> None:
        self.max_turn_tokens: int | None = None

    def __getattr__(self, name: str) -> None:
        """None for each other limit of the cookbook."""


class TinkerEnv:
    """The cookbook's Env: an episode whose turns the host samples."""

    def __init__(self, hosted: HostedEnv, task: Task) -> None:
        self._hosted, self._task = hosted, task
        self._episode: TurnedEpisode[TokenRequest, Generation] | None = None
        self._request: TokenRequest | None = None
        self.rollout_limits = TurnBudget()
        """The limits that the cookbook reads before each turn."""

    async def initial_observation(self) -> Any:
        """The first prompt and the stop tokens. Raises InfraError if the environment fails."""
        from tinker_cookbook.rl.types import InitialObservationOverflow

        context = self._hosted.config.options().limits.context or 0
        self._episode = await self._hosted.turned(self._task, context_length=context)
        self._next(await self._episode.request())
        if self._request is None:
            return InitialObservationOverflow(self._reward(), {"stop/max_tokens": 1.0})
        return self._observation()

    async def step(self, action: Sequence[int], *, extra: Mapping[str, Any] | None = None) -> StepResult:
        """Play the Env's answer to a turn. The log-probs stay with the host. Raises InfraError if the environment
        fails."""
        from tinker_cookbook.rl.types import StepResult

        if self._episode is None or self._request is None:
            raise RuntimeError("the episode has not begun, or has ended: make a new Env for each episode")
        reason: FinishReason | None = "length" if (extra or {}).get("stop_reason") == "length" else None
        said = generation(self._request, [*action], [0.0] * len(action), reason)
        self._next(await self._episode.reply(said))
        done = self._request is None
        metrics = {"parse_error_masked": 1.0} if self._episode.masks and self._episode.masks[-1] else {}
        if done and (stop := self._episode.trajectory.stop) is not None:
            metrics[f"stop/{_STOPS.get(stop, stop)}"] = 1.0
        observation, stops = self._observation()
        return StepResult(self._reward() if done else 0.0, done, observation, stops, metrics)

    async def close(self) -> None:
        """End the episode. Safe to call twice."""
        if self._episode is not None:
            await self._episode.close()

    def _next(self, request: TokenRequest | None) -> None:
        if request is not None and request.sampling_params.get("stop"):
            raise ConfigError(f"{self._hosted.factory().cls.__name__} has stop strings, which this door cannot pass on")
        if request is not None and request.images:
            raise ConfigError(f"{self._hosted.factory().cls.__name__} shows images, which this door cannot pass on")
        self._request = request
        self.rollout_limits.max_turn_tokens = None if request is None else request.sampling_params["max_new_tokens"]

    def _observation(self) -> tuple[Any, list[int]]:
        import tinker

        if self._request is None:
            return tinker.ModelInput.from_ints([]), []
        stops = [*(self._request.sampling_params.get("stop_token_ids") or ())]
        return tinker.ModelInput.from_ints([*self._request.input_ids]), stops

    def _reward(self) -> float:
        """The reward of the ended episode. Raises InfraError for a failed episode."""
        assert self._episode is not None
        trajectory = self._episode.trajectory
        if trajectory.failure is not None:
            raise InfraError(
                f"episode of task {self._task.id}: {trajectory.failure.boundary}: {trajectory.failure.error}"
            )
        return trajectory.reward or 0.0
