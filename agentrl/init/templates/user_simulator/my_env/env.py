"""The environment: the model serves a simulated user, who knows what the model has to ask for."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel

from agentrl import Action, Env, Observation, StepResult, Task, ToolResult, Trajectory, tool
from agentrl.chat import Speaker, SpeakerConfig, speaker
from agentrl.chat.simulation import SimulatedUser, UserConfig

DAYS = ["Monday", "Tuesday", "Friday", "Sunday"]
WISHES = ["table", "room", "boat", "house", "book"]


class MyEnvConfig(BaseModel):
    """What `env_config` in train.yaml, or `--set env_config.KEY=VALUE`, may hold."""

    user: UserConfig = UserConfig(speaker=SpeakerConfig(script="my_env.user:reply"))
    """Who plays the user: a script, or `{speaker: {base_url: https://host/v1, model: NAME}}`."""


class MyEnv(Env):
    """Book what a simulated user wants, on the right day. Only the user knows the day."""

    config: MyEnvConfig
    shared: Speaker

    @classmethod
    def share(cls, config: MyEnvConfig) -> Speaker:
        """One speaker plays the users of all episodes."""
        return speaker(config.user.speaker)

    @classmethod
    def tasks(cls, config: MyEnvConfig, split: Literal["train", "eval"]) -> Iterable[Task]:
        """Every fifth wish is held out."""
        for number, (day, what) in enumerate((day, what) for what in WISHES for day in DAYS):
            if (number % 5 == 0) == (split == "eval"):
                yield Task(prompt=f"A {what} please.", label=day, metadata={"what": what})

    def reset(self, task: Task) -> Observation:
        wish = f"You want a {task.metadata['what']} on {task.label}."
        facts = {"day": task.label}  # for a scripted user; a model reads the wish
        self.user, self.booked = SimulatedUser(self.shared, wish, self.config.user, facts=facts), ""
        return task.prompt

    @tool(parallel=False)
    async def book(self, day: str) -> ToolResult:
        """Book it for a day."""
        self.booked = day
        return ToolResult("Booked.", done=True)

    async def step(self, action: Action) -> StepResult:
        """Execute a call. Any other turn is a message to the user."""
        if action.calls:
            return await self.run_tools(action)
        heard = await self.user.hear(action.content)
        return StepResult(heard.text, done=heard.ended)

    def score(self, trajectory: Trajectory) -> float:
        """The reward depends on the booking at the end, not on the words."""
        return float(self.booked == self.task.label)
