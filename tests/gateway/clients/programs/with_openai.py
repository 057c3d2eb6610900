"""OpenAI's own client: three replies to one question, and on with the second: with_openai.py PROMPT."""

import sys

from openai import OpenAI

tool = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}
client = OpenAI()
messages = [{"role": "user", "content": sys.argv[1]}]
made = client.chat.completions.create(model="agentrl", messages=messages, tools=[tool], n=3)
chosen = made.choices[1].message
messages += [
    chosen.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": chosen.tool_calls[0].id, "content": "found"},
]
done = client.chat.completions.create(model="agentrl", messages=messages, tools=[tool])
print(len(made.choices), made.usage.completion_tokens, done.choices[0].message.content)
