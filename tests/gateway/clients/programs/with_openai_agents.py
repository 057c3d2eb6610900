"""An agent of openai-agents with one tool: with_openai_agents.py (responses|chat) (stream|whole) PROMPT."""

import asyncio
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

wire, how, prompt = sys.argv[1:]


@function_tool
def search(query: str) -> str:
    """Search the notes."""
    return f"results for {query}"


async def main() -> None:
    set_tracing_disabled(True)
    model = (OpenAIResponsesModel if wire == "responses" else OpenAIChatCompletionsModel)("agentrl", AsyncOpenAI())
    agent = Agent(name="seeker", instructions="You are a helpful agent.", tools=[search], model=model)
    if how == "stream":
        run = Runner.run_streamed(agent, prompt, max_turns=20)
        async for _ in run.stream_events():
            pass
    else:
        run = await Runner.run(agent, prompt, max_turns=20)
    print(run.final_output)


asyncio.run(main())
