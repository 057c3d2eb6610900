"""An agent of strands-agents with one tool: with_strands.py (chat|responses|messages) (stream|whole) PROMPT."""

import os
import sys

from strands import Agent, tool

wire, how, prompt = sys.argv[1:]


@tool
def search(query: str) -> str:
    """Search the notes.

    Args:
        query: What to look for.
    """
    return f"results for {query}"


def model():
    if wire == "messages":
        from strands.models.anthropic import AnthropicModel

        key = os.environ["ANTHROPIC_AUTH_TOKEN"]
        return AnthropicModel(client_args={"api_key": key}, model_id="agentrl", max_tokens=4096)
    if wire == "responses":
        from strands.models.openai_responses import OpenAIResponsesModel

        return OpenAIResponsesModel(model_id="agentrl")
    from strands.models.openai import OpenAIModel

    return OpenAIModel(model_id="agentrl", streaming=how == "stream")


agent = Agent(model=model(), tools=[search], system_prompt="You are a helpful agent.", callback_handler=None)
print(agent(prompt))
