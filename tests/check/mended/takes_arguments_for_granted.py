"""Executes its calls by itself."""

from agentrl import CallError, Env, Task

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}
SPEC = {
    "name": "look",
    "description": "Look a country up.",
    "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
}


class Granted(Env):
    @classmethod
    def tasks(cls, config, split):
        start = 0 if split == "train" else 50
        for n, (country, capital) in enumerate(CAPITALS.items()):
            yield Task(prompt=f"What is the capital of {country}?", label=capital, seed=start + n)

    def tools(self):
        return [SPEC]

    async def exec_tool(self, call):
        if call.name != "look":
            raise CallError("the only tool is look")
        country = call.arguments.get("country")
        return CAPITALS.get(str(country).lower().title(), "unknown")

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
