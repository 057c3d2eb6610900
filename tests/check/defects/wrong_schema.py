"""Its tools come from a table of its own."""

from agentrl import CallError, Env, Task

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}
SPEC = {
    "name": "look",
    "description": "Look a country up.",
    "parameters": {"type": "object", "properties": {"country": {"type": "str"}}, "required": ["country"]},
}


class Table(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def tools(self):  # found here
        return [SPEC]

    async def exec_tool(self, call):
        country = call.arguments.get("country")
        if call.name != "look" or not isinstance(country, str):
            raise CallError("look takes a country")
        return CAPITALS.get(country, "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
