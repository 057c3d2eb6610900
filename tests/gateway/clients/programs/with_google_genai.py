"""Google's own SDK with one tool: with_google_genai.py (stream|whole|output) PROMPT.

It calls the tool by itself. With "output": an answer of a type.
"""

import os
import sys

from google import genai
from google.genai import types

how, prompt = sys.argv[1:]


def search(query: str) -> str:
    """Search the notes."""
    return f"results for {query}"


options = types.HttpOptions(base_url=os.environ["GOOGLE_GEMINI_BASE_URL"])
client = genai.Client(api_key=os.environ["GEMINI_API_KEY"], http_options=options)

if how == "output":
    from pydantic import BaseModel

    class City(BaseModel):
        """A city."""

        name: str

    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=City)
    print(client.models.generate_content(model="agentrl", contents=prompt, config=config).parsed.name)
    sys.exit()

print(client.models.count_tokens(model="agentrl", contents=prompt).total_tokens, "tokens")
config = types.GenerateContentConfig(
    system_instruction="You are a helpful agent.",
    tools=[search],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(maximum_remote_calls=30),
)
chat = client.chats.create(model="agentrl", config=config)
if how == "stream":
    for chunk in chat.send_message_stream(prompt):
        print(chunk.text or "", end="")
else:
    print(chat.send_message(prompt).text)
