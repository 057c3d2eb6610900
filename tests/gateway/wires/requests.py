"""Requests of each wire."""

from __future__ import annotations

from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses

WIRES = {"messages": Messages(), "responses": Responses(), "chat": Chat()}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
