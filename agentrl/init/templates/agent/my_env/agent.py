"""The agent: a program that asks a model and runs its own tools. It knows nothing of training. Put yours here."""

import json
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI

LOOKUP: Any = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Current weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


async def answer(question: str, reports: Mapping[str, str], client: AsyncOpenAI) -> str:
    """Answer a question about the weather, with reports by place."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = await client.chat.completions.create(model="any", messages=messages, tools=[LOOKUP])
        said: Any = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return said.content or ""
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": lookup(call.function, reports)}
            for call in said.tool_calls
        ]


def lookup(function: Any, reports: Mapping[str, str]) -> str:
    """The tool's answer. The model's mistakes are answered, too, so that it can try again."""
    try:
        place = json.loads(function.arguments)["place"]
    except (ValueError, KeyError, TypeError):
        return "Call lookup with a place."
    return reports.get(str(place), f"No report of {place}.")
