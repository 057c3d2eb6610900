"""An agent of pydantic-ai with one tool: with_pydantic_ai.py (chat|responses|messages) (whole|output) PROMPT.

With "output" its answer has a type.
"""

import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent

wire, how, prompt = sys.argv[1:]
if wire == "messages":
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=os.environ["ANTHROPIC_BASE_URL"], api_key=os.environ["ANTHROPIC_AUTH_TOKEN"])
    model = AnthropicModel("agentrl", provider=provider)
else:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    model = (OpenAIResponsesModel if wire == "responses" else OpenAIChatModel)("agentrl")


class City(BaseModel):
    """A city."""

    name: str


kind = City if how == "output" else str
agent = Agent(model, output_type=kind, instructions="You are a helpful agent.", retries=5)


@agent.tool_plain
def search(query: str) -> str:
    """Search the notes."""
    return f"results for {query}"


print(agent.run_sync(prompt).output)
