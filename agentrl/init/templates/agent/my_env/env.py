"""The environment around the agent: what it is asked, where its model is, and what is rewarded."""

from collections.abc import Iterator

from openai import AsyncOpenAI

from agentrl import AgentEnv, Endpoint, Task, Trajectory

from .agent import answer

PLACES = ["city", "town", "school", "sea", "river", "mountain", "north", "south", "east", "west"]
WEATHER = ["sunny", "rainy", "windy", "foggy"]


class MyEnv(AgentEnv):
    """An agent answers a question about the weather. Only its tool knows it."""

    @classmethod
    def tasks(cls, config: None, split: str) -> Iterator[Task]:
        """Every third question is held out. Or name a file: --data tasks.jsonl."""
        questions = [(place, weather) for weather in WEATHER for place in PLACES]
        for number, (place, weather) in enumerate(questions):
            if (number % 3 == 0) == (split == "eval"):
                yield Task(prompt=f"Weather in the {place}?", label=weather, metadata={"place": place})

    async def run(self, task: Task, endpoint: Endpoint) -> str:
        """Start the agent. What it returns is `self.result`."""
        reports = {task.metadata["place"]: f"It is {task.label} there."}
        async with AsyncOpenAI(base_url=endpoint.openai, api_key=endpoint.key, timeout=3600) as client:
            return await answer(str(task.prompt), reports, client)

    def score(self, trajectory: Trajectory) -> float:
        """The reward of the whole episode: 1 for the right answer."""
        return float(self.result == self.task.label)
