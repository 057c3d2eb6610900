"""The tool of the survey."""

from __future__ import annotations

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a thing.",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}, "where": {"type": "object"}, "many": {"type": "array"}},
        },
    },
}
