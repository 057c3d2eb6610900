"""SGLang's HTTP API: the client, a server with the same endpoints, and the format of requests and responses. Imports
aiohttp."""

from agentrl.engine.sglang.client import SGLangEngine

__all__ = ["SGLangEngine"]
