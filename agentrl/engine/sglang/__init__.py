"""SGLang's HTTP API: the client, a server that speaks it, and the words on the wire. Imports aiohttp."""

from agentrl.engine.sglang.client import SGLangEngine

__all__ = ["SGLangEngine"]
