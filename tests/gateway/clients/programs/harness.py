"""A shipped harness of a library, in the library's own Python: harness.py (openai_agents|langgraph|strands) PAUSE_S.

Plays one episode with a scripted model and a pause in its middle, and prints what it came to, as JSON.
"""

import asyncio
import json
import sys

from agentrl import Task
from tests.gateway.clients.episodes import episode
from tests.gateway.clients.said import SEARCH, Say, Script

name, pause = sys.argv[1:]

if name == "openai_agents":
    from agents import Agent, function_tool

    from agentrl_envs.agents.openai_agents import OpenAIAgents

    @function_tool
    def search(query: str) -> str:
        """Search the notes."""
        return f"results for {query}"

    class Seeker(OpenAIAgents):
        def agent(self, task, model):
            return Agent(name="seeker", instructions="Search, then answer.", tools=[search], model=model)

        def score(self, trajectory):
            return float(self.result == self.task.label)

elif name == "langgraph":
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from agentrl_envs.agents.langgraph import LangGraph

    @tool
    def search(query: str) -> str:
        """Search the notes."""
        return f"results for {query}"

    class Seeker(LangGraph):
        def graph(self, task, model):
            return create_agent(model, [search], system_prompt="Search, then answer.")

        def score(self, trajectory):
            return float(self.result == self.task.label)

else:
    from strands import Agent, tool

    from agentrl_envs.agents.strands import StrandsAgents

    @tool
    def search(query: str) -> str:
        """Search the notes."""
        return f"results for {query}"

    class Seeker(StrandsAgents):
        def agent(self, task, model):
            return Agent(model=model, tools=[search], system_prompt="Search, then answer.", callback_handler=None)

        def score(self, trajectory):
            return float(self.result.strip() == self.task.label)


TURNS = [Say(f"Step {number}.", (SEARCH.run(f"{number}"),)) for number in (1, 2, 3)]
made = asyncio.run(
    episode(Seeker(), Task(prompt="What is it?", label="42"), Script([*TURNS, Say("42")]), pause_s=float(pause), at=2)
)
told = {
    "reward": made.reward,
    "stop": str(made.stop),
    "failure": str(made.failure),
    "segments": len(made.segments),
    "turns": len(made.turns),
    "untrained": made.ledger.sampled - made.ledger.trained,
}
print(json.dumps(told))
