"""The environment: what the model sees, what it may do, and what is rewarded."""

from agentrl import Env, Task, ToolError, tool

PLACES = ["city", "town", "school", "sea", "river", "mountain", "north", "south", "east", "west"]
WEATHER = ["sunny", "rainy", "windy", "foggy"]


class MyEnv(Env):
    """Answer a question about the weather. Only the tool knows it."""

    @classmethod
    def tasks(cls, config, split):  # every third is held out; or name a file: --data tasks.jsonl
        questions = [(place, weather) for weather in WEATHER for place in PLACES]
        for number, (place, weather) in enumerate(questions):
            if (number % 3 == 0) == (split == "eval"):
                yield Task(prompt=f"Weather in the {place}?", label=weather, metadata={"place": place})

    @tool
    async def lookup(self, place: str) -> str:
        """Current weather of a place."""
        if place != self.task.metadata["place"]:
            raise ToolError(f"No report of {place}.")  # the model reads this, and may try again
        return f"It is {self.task.label} there."

    def score(self, trajectory):
        """The reward of the whole episode: 1 for the right answer."""
        return float(trajectory.answer == self.task.label)
