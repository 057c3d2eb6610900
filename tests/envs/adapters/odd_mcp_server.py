"""An MCP server over stdio in nothing but the standard library, that does what servers should not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
PIXEL = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
RESULTS: dict[str, dict[str, Any]] = {
    "image": {"content": [PIXEL]},
    "mixed": {"content": [{"type": "text", "text": "a cat"}, PIXEL]},
    "structured": {"content": [], "structuredContent": {"kg": 3}},
    "failed": {"content": [{"type": "text", "text": "disk full"}], "isError": True},
    "mute": {"content": []},
    "resource": {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}]},
    "broken": {"content": "no list"},
}
PAGES = [
    {"tools": [{"name": "does", "inputSchema": TEXT}, {"name": "bare", "inputSchema": {"type": "object"}}]},
    {"tools": [{"name": "nested", "title": "Nested", "inputSchema": {**TEXT, "$schema": "x", "$defs": {"A": {}}}}]},
]


def say(**what: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **what}), flush=True)


def call(number: int, name: str, arguments: dict[str, Any]) -> None:
    text = arguments.get("text", "")
    if text in RESULTS:
        say(id=number, result=RESULTS[text])
    elif text == "die":
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)
    elif text == "hang":
        sys.stdin.read()  # answers nothing until it is closed
    elif text == "refuse":
        say(id=number, error={"code": -32602, "message": "text must be a colour"})
    elif text.startswith("read "):
        say(id=number, result={"content": [{"type": "text", "text": Path(sys.argv[1], text[5:]).read_text()}]})
    elif text == "rubbish":
        print("Listening on port 80 {", flush=True)
        say(method="notifications/tools/list_changed")
        PAGES[0]["tools"] = []
        say(id=number, result={"content": [{"type": "text", "text": "after rubbish"}]})
    else:
        say(id=number, result={"content": [{"type": "text", "text": f"{name} {text} {os.getpid()}"}]})


def answer(number: int, method: str, params: dict[str, Any]) -> None:
    if method == "initialize":
        info = {"serverInfo": {"name": "odd", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
        say(id=number, result={"protocolVersion": params["protocolVersion"], **info})
    elif method == "tools/list":
        first = params.get("cursor") is None
        say(id=number, result={**PAGES[0], "nextCursor": "2"} if first else PAGES[1])
    elif method == "tools/call":
        call(number, params["name"], params.get("arguments", {}))
    else:
        say(id=number, error={"code": -32601, "message": "Method not found"})


if "--dead" in sys.argv:
    sys.exit("no licence")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answer(asked["id"], asked["method"], asked.get("params", {}))
