"""An environment of skyrl-gym in agentrl. A turn is the model's text, and the reward is the sum of the turns' rewards.

A line of the data is a row of SkyRL's data sets: `prompt` (messages), `env_class`, and the columns that the environment
reads.

    pip install skyrl-gym==0.4.0
    agentrl train examples/skyrl_gym/env.py:SkyRLGym --set env_config.data=rows.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import skyrl_gym
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Action, Env, StepResult, Task


class SkyRLGymConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    data: Path
    """A JSONL file in SkyRL's form."""
    eval_data: Path | None = None
    """A file of held-out tasks, in the same form."""
    options: dict[str, Any] = {}
    """The `env_config` of the environment."""
    max_turns: int = Field(10, ge=1)
    """The number of turns that the environment allows, unless the row has `max_turns`."""


class SkyRLGym(Env):
    config: SkyRLGymConfig
    score = Env.score  # the sum of the turns' rewards
    _env: Any = None

    @classmethod
    def tasks(cls, config: SkyRLGymConfig, split: str) -> Iterator[Task]:
        path = config.data if split == "train" else config.eval_data
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
        for number, row in enumerate(map(json.loads, filter(None, lines)), 1):
            yield Task(id=f"{split}-{number}", prompt=row["prompt"], metadata={"row": row})

    def reset(self, task: Task) -> Any:
        row = {"max_turns": self.config.max_turns, **task.metadata["row"]}
        self._env = skyrl_gym.make(row["env_class"], env_config=self.config.options, extras=row)
        messages, _ = self._env.init(task.prompt)
        return messages

    def step(self, action: Action) -> StepResult:
        output = self._env.step(action.content)
        return StepResult(output["observations"], reward=float(output["reward"]), done=bool(output["done"]))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
