"""The door to TRL: `rollout_func` of GRPOTrainer. agentrl plays the episodes, and TRL trains on their tokens.

    rollouts = TRLRollouts("my_env.py:MyEnv", limits={"turns": 4})
    trainer = GRPOTrainer(
        "Qwen/Qwen3-0.6B",
        reward_funcs=rollouts.reward,
        rollout_func=rollouts,
        train_dataset=rollouts.dataset(),
        args=GRPOConfig(...),
    )

Written for TRL 1.16.0. The column `prompt` of the data set holds the ids of tasks. The engine is vLLM with `use_vllm`,
else LocalEngine on the trainer's own module. A failed episode has the reward None, which TRL leaves out of the mean of
the group, and none of its tokens is trained.

lost here: images; seats; episodes of several sequences (`thinking: strip`, `limits.compact_at`, agents with branches);
rewards of single turns; log-probs of sampling without vLLM, because TRL computes them anew; the reason for a mask; the
reason to stop (`mask_truncated_completions` reads the last token alone). In the mean of the loss types `grpo` and
`dr_grpo` a failed episode still counts as a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from agentrl.engine.base import Engine
from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.hosts.trl_vllm import VLLMEngine
from agentrl.hosts.turned import HostedEnv
from agentrl.render.base import Renderer
from agentrl.rollout.play.episodes import Rollout
from agentrl.rollout.play.groups import run_groups
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import SamplingParams, Task
from agentrl.workers.threads import LoopThread

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine

VERSION = "1.16.0"
COLUMN = "agentrl_reward"
"""The column with the rewards, which TRL passes to the reward functions."""


class TRLRollouts(HostedEnv):
    """An Env as a `rollout_func` of GRPOTrainer. `settings` are the keys of `DoorConfig`. Raises ConfigError.

    `max_batch` is the most sequences that LocalEngine samples at once. With FSDP or DeepSpeed's ZeRO no process has the
    whole model, so these need `use_vllm`.
    """

    def __init__(self, env: str | type[Env], *, max_batch: int = 64, **settings: Any) -> None:
        super().__init__(env, **settings)
        if self.config.splits:
            raise ConfigError(f"TRL takes one sequence for each episode: leave out {self.config.splits}")
        self._max_batch, self._calls = max_batch, 0
        self._thread = LoopThread("agentrl in TRL")
        self._engine: LocalEngine | None = None

    def dataset(self, split: Literal["train", "eval"] = "train") -> Any:
        """The data set for TRL: a row for each task, with the id of the task as the prompt."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": task.id} for task in self.tasks(split)])

    @staticmethod
    def reward(completions: Sequence[Any], log_metric: Any = None, **columns: Any) -> Sequence[float | None]:
        """The reward function for TRL: the rewards of the episodes, and None for failed episodes."""
        if COLUMN not in columns:
            raise ConfigError("the rewards come from the episodes: pass the same object as rollout_func")
        rewards: Sequence[float | None] = columns[COLUMN]
        if log_metric is not None:
            log_metric("agentrl/failed", sum(reward is None for reward in rewards) / max(len(rewards), 1))
        return rewards

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt. Raises ConfigError, and BugError for a bug of the Env."""
        tasks = [self._task(prompt) for prompt in prompts]
        self._calls += 1
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        with _evaluating(trainer.model), self._serving(trainer) as engine:
            trajectories = self._thread.run_here(self.play_all(tasks, size, trainer, engine))
        end = trainer.processing_class.eos_token_id
        rows = [_row(trajectory, end) for trajectory in trajectories]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def _task(self, prompt: Any) -> Task:
        if not isinstance(prompt, str) or prompt not in self.by_id:
            raise ConfigError(f"the prompt {prompt!r:.80} is no id of a task: take dataset() as the data set")
        return self.by_id[prompt]

    async def play_all(self, tasks: Sequence[Task], size: int, trainer: Any, engine: Engine) -> list[Trajectory]:
        """The trajectories of `size` episodes of each task, in the order of the tasks."""
        opened, params = await self.opened(), _sampling_params(trainer)
        rollout = Rollout(
            envs=opened.factory,
            engine=engine,
            renderer=await self._renderer_of(trainer),
            options=self.config.options(params, tokens=trainer.max_completion_length),
            reward=self.config.reward_function(),
            concurrency=self._max_batch,
        )
        drawn, size = _groups(tasks, size)
        name, seed = f"trl-{trainer.accelerator.process_index}", trainer.args.seed
        groups = run_groups(rollout, drawn, size, name=name, seed=seed, step=self._calls)
        played = await opened.start(groups)
        return [trajectory for group in played for trajectory in group]

    async def _renderer_of(self, trainer: Any) -> Renderer:
        if self.config.model is not None:
            return await self.renderer()
        from agentrl.render import load_renderer

        kwargs = self.config.chat_template_kwargs or getattr(trainer, "chat_template_kwargs", None)
        template = self.config.template_text()
        return load_renderer(trainer.processing_class, chat_template=template, chat_template_kwargs=kwargs)

    @contextmanager
    def _serving(self, trainer: Any) -> Iterator[Engine]:
        """The engine for the trainer's present weights."""
        if getattr(trainer, "use_vllm", False):
            with ThreadPoolExecutor(self._max_batch) as threads:
                yield VLLMEngine(trainer, threads)
            return
        if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
            raise ConfigError("with FSDP or DeepSpeed no process has the whole model to sample from: set use_vllm=True")
        from agentrl.engine.local import LocalEngine

        if self._engine is None:
            model = trainer.accelerator.unwrap_model(trainer.model)
            model = model.get_base_model() if hasattr(model, "get_base_model") else model
            self._engine = LocalEngine(model, trainer.processing_class, max_batch=self._max_batch)
        self._engine.weight_version = f"{trainer.state.global_step}"  # drops the prefixes of older weights
        yield self._engine


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """The model in eval mode, as for sampling, and afterwards in its mode before."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _groups(tasks: Sequence[Task], size: int) -> tuple[list[Task], int]:
    """Tasks in groups of `size`, for rewards that compare the episodes of a group. A process that has parts of groups
    plays each episode by itself."""
    runs = [[*run] for _, run in groupby(tasks, key=lambda task: task.id)]
    if all(len(run) % size == 0 for run in runs):
        return [*tasks[::size]], size
    return [*tasks], 1


def _sampling_params(trainer: Any) -> SamplingParams:
    """TRL's sampling parameters. Raises ConfigError for parameters that agentrl's engines do not have."""
    args = trainer.args
    if (args.repetition_penalty or 1.0) != 1.0 or args.min_p or args.generation_kwargs:
        raise ConfigError(
            "agentrl samples by temperature, top_p and top_k: leave out repetition_penalty, min_p and generation_kwargs"
        )
    params = SamplingParams(temperature=args.temperature, top_p=args.top_p)
    return {**params, "top_k": args.top_k} if args.top_k else params


def _row(trajectory: Trajectory, end: int) -> Mapping[str, Any]:
    """A row of TRL. TRL cannot read an empty sequence, so an episode without a turn has the token `end`, untrained."""
    if len(trajectory.segments) > 1:
        raise ConfigError(f"{trajectory!r:.120} has several sequences, but TRL takes one for each episode: use slime")
    valid, prompt = trajectory.is_valid, trajectory.prompt_length
    response = trajectory.response
    return {
        "prompt_ids": trajectory.tokens[:prompt] or [end],
        "completion_ids": response or [end],
        "logprobs": trajectory.log_probs or [0.0],
        "env_mask": (trajectory.loss_mask if valid else [0] * len(response)) or [0],
        COLUMN: trajectory.reward if valid else None,
    }
