"""A LangGraph agent with one tool: with_langgraph.py (chat|responses|messages) (stream|whole) PROMPT.

With "output" in the second place: the model itself, with an answer of a type.
"""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool

wire, how, prompt = sys.argv[1:]


@tool
def search(query: str) -> str:
    """Search the notes."""
    return f"results for {query}"


def model():
    if wire == "messages":
        from langchain_anthropic import ChatAnthropic

        key = os.environ["ANTHROPIC_AUTH_TOKEN"]
        return ChatAnthropic(model="agentrl", api_key=key, streaming=how == "stream", max_tokens=4096)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="agentrl", streaming=how == "stream", use_responses_api=wire == "responses")


if how == "output":
    from pydantic import BaseModel

    class City(BaseModel):
        """A city."""

        name: str

    print(model().with_structured_output(City).invoke(prompt).name)
    sys.exit()

agent = create_agent(model(), [search], system_prompt="You are a helpful agent.")
done = asyncio.run(agent.ainvoke({"messages": [("user", prompt)]}, {"recursion_limit": 60}))
print(done["messages"][-1].text)
