"""A coding agent in plain Python: it asks, runs what it is told to run, and ends at a reply without a call."""

import json
import os
import subprocess
import sys
import urllib.request

TOOL = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = json.dumps({"model": "agentrl", "messages": messages, "tools": [TOOL]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        print(said["content"])
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr or "done"})
