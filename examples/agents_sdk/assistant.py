"""An assistant, written with openai-agents. It knows nothing of training."""

from __future__ import annotations

from agents import Agent, function_tool

from agentrl_envs.fact_search.facts import Index, load_facts

index = Index(load_facts().passages())


@function_tool
async def search(query: str) -> str:
    """Search the encyclopedia."""
    return "\n".join(index.search(query, 1)) or "No result."


assistant = Agent(name="assistant", tools=[search])
