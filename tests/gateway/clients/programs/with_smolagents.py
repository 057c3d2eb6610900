"""An agent of smolagents with one tool: with_smolagents.py (tools|code) whole PROMPT."""

import os
import sys

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

kind, _, prompt = sys.argv[1:]


@tool
def search(query: str) -> str:
    """Search the notes.

    Args:
        query: What to look for.
    """
    return f"results for {query}"


model = OpenAIServerModel("agentrl", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = (CodeAgent if kind == "code" else ToolCallingAgent)(tools=[search], model=model, max_steps=12)
print(agent.run(prompt))
