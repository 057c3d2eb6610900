"""The environment: the model serves a simulated user, who knows what the model has to ask for."""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel

from agentrl import Action, Env, Message, Observation, StepResult, Task, ToolResult, Trajectory, tool
from agentrl.chat import Speaker, SpeakerConfig, speaker

DAYS = ["Monday", "Tuesday", "Friday", "Sunday"]
WISHES = ["table", "room", "boat", "house", "book"]


class MyEnvConfig(BaseModel):
    """What `env_config` in train.yaml, or `--set env_config.KEY=VALUE`, may hold."""

    user: SpeakerConfig = SpeakerConfig(script="my_env.user:reply")
    """Who plays the user: a script, or `{base_url: https://host/v1, model: NAME}` for any model behind an API."""


class MyEnv(Env):
    """Book what a simulated user wants, on the right day. Only the user knows the day."""

    config: MyEnvConfig
    shared: Speaker

    @classmethod
    def share(cls, config: MyEnvConfig) -> Speaker:
        return speaker(config.user)

    @classmethod
    def tasks(cls, config: MyEnvConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        """Every fifth wish is held out."""
        for number, (day, what) in enumerate((day, what) for what in WISHES for day in DAYS):
            if (number % 5 == 0) == (split == "eval"):
                yield Task(prompt=f"A {what} please.", label=day, metadata={"what": what})

    def reset(self, task: Task) -> Observation:
        self.booked = ""
        return task.prompt

    @tool(parallel=False)
    async def book(self, day: str) -> ToolResult:
        """Book it for a day."""
        self.booked = day
        return ToolResult("Booked.", done=True)

    async def step(self, action: Action) -> StepResult:
        """A call is carried out. Anything else is said to the user."""
        if action.calls:
            return await self.run_tools(action)
        told = f"You are a customer. You want a {self.task.metadata['what']} on {self.task.label}. Answer in one line."
        asked: Sequence[Message] = [{"role": "system", "content": told}, {"role": "user", "content": action.content}]
        return StepResult(str((await self.shared.reply(asked))["content"]))

    def score(self, trajectory: Trajectory) -> float:
        """By what was booked in the end, not by what was said."""
        return float(self.booked == self.task.label)
