"""An MCP server over stdio in nothing but the standard library: starting the package's own takes more than a second."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CAPITAL = {
    "name": "capital",
    "description": "The capital of a country.",
    "inputSchema": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "capitals", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [CAPITAL]}
    if method == "tools/call":
        country = params["arguments"].get("country")
        if country == "the end":
            os._exit(1)
        return {
            "content": [{"type": "text", "text": {"France": "Paris", "pid": str(os.getpid())}.get(country, "unknown")}]
        }
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked["method"], asked.get("params", {}))}
        print(json.dumps(said), flush=True)
