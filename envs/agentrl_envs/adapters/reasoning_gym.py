"""reasoning-gym: generated questions, answered in a single turn, and scored by the data set's `score_answer`.

pip install reasoning-gym
agentrl train agentrl_envs.adapters.reasoning_gym:ReasoningGym --set env_config.dataset=chain_sum
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl import Action, ConfigError, Env, InfraError, StepResult, Task, Trajectory
from agentrl.rewards import workers
from agentrl.rewards.answers import tagged
from agentrl_envs.adapters.reasoning_gym_score import packed
from agentrl_envs.adapters.suites import EVAL_SEEDS, names_of, refuse_unknown, suite

SCORE_S = 20.0
"""The time limit of `score_answer`, in seconds. Some scorers search for a solution, and sympy may never end."""
EVALUATES = frozenset(
    {
        *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication"),
        *("puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
    }
)
"""Data sets whose `score_answer` evaluates the model's text, as Python or by sympy's parser."""


class ReasoningGymConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    dataset: str | list[str] = Field(min_length=1)
    """The name of the data set. With several names, tasks use them in turn."""
    options: dict[str, Any] = {}
    """The arguments of `create_dataset`, such as the difficulty."""
    seed: int = Field(0, ge=0, lt=EVAL_SEEDS)
    """The seed of the training data set. The held-out data set has `seed` + 2**31."""
    size: int = Field(1000, ge=1)
    """The number of questions of each data set in each split (train, eval)."""
    instruction: str = "Give your final answer between <answer> and </answer>."
    """Text after each question."""


class ReasoningGym(Env):
    """Answer a generated question. The reward is the data set's score of the last <answer>, 0 to 1.

    Scoring runs in a separate process with a deadline, because it may execute the model's text, or never end. A scorer
    that breaks on an answer, or does not end, gives 0.
    """

    config: ReasoningGymConfig
    deterministic = True

    @classmethod
    async def share(cls, config: ReasoningGymConfig) -> None:
        """Create each data set once, so that a wrong name or option is reported before the first token."""
        for name in names_of(config.dataset):
            await asyncio.to_thread(_made, name, json.dumps(config.options), config.seed, config.size)

    @classmethod
    def needs(cls, config: ReasoningGymConfig, episodes: int) -> Sequence[str]:
        unsafe = [name for name in names_of(config.dataset) if name in EVALUATES]
        return [f"trust: scoring {', '.join(unsafe)} executes the model's text without a sandbox"] if unsafe else []

    @classmethod
    def tasks(cls, config: ReasoningGymConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        seed = config.seed + (EVAL_SEEDS if split == "eval" else 0)
        for index, name in itertools.product(range(config.size), names_of(config.dataset)):
            metadata = {"dataset": name, "options": config.options, "seed": seed, "size": config.size, "index": index}
            yield Task(prompt=_entry(metadata)["question"], metadata=metadata)

    def reset(self, task: Task) -> str:
        if _entry(task.metadata)["question"] != task.prompt:
            raise ConfigError(
                f"task {task.id}: reasoning-gym now makes another question of {task.metadata['dataset']} "
                f"{task.metadata['index']}; make the tasks again with the version that is installed, and set "
                "PYTHONHASHSEED=0 for both programs, as some questions depend on the order of a set"
            )
        return f"{task.prompt}\n\n{self.config.instruction}".strip()

    async def step(self, action: Action) -> StepResult:
        return StepResult(done=True)

    async def score(self, trajectory: Trajectory) -> float:
        answer = tagged(trajectory.answer or "")
        try:
            question = packed(self.task.metadata, _entry(self.task.metadata))
            graded = workers.shared().run(f"{__name__}_score:score", question, answer, seconds=SCORE_S)
            return float(await graded)
        except (TimeoutError, InfraError, workers.GraderError):
            return 0.0  # the answer made the scorer hang, die or raise: the question itself was scored when it was made


def _entry(metadata: Any) -> dict[str, Any]:
    """The question with all data for the scorer, generated again from a task's metadata."""
    try:
        return _item(
            metadata["dataset"], json.dumps(metadata["options"]), metadata["seed"], metadata["size"], metadata["index"]
        )
    except KeyError as exc:
        raise ConfigError(
            f"the task's metadata has no {exc}; write tasks with: agentrl data tasks "
            "agentrl_envs.adapters.reasoning_gym:ReasoningGym"
        ) from exc


@lru_cache(maxsize=256)
def _made(name: str, options: str, seed: int, size: int) -> Any:
    """Create a data set. Raises ConfigError for an unknown name, and for options that the suite refuses."""
    gym = suite("reasoning_gym", "reasoning-gym")
    refuse_unknown("data set of reasoning-gym", name, gym.factory.DATASETS)
    try:
        return gym.create_dataset(name, seed=seed, size=size, **json.loads(options))
    except (AssertionError, TypeError, ValueError) as exc:
        raise ConfigError(f"reasoning-gym's {name} refuses its options: {exc}") from exc


@lru_cache(maxsize=4096)
def _item(name: str, options: str, seed: int, size: int, index: int) -> dict[str, Any]:
    item: dict[str, Any] = _made(name, options, seed, size)[index]
    return item
