"""A trainer's commands to a server: load weights, release memory, report the configuration. Generation is not among
these commands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.engine.sglang.answers import error_message
from agentrl.engine.sglang.connections import Address, Connections, UnavailableError
from agentrl.errors import EngineError, RequestError
from agentrl.types import JSON

_LOAD_S = 1800.0
"""The most seconds for reading weights, or for releasing memory. Hundreds of gigabytes take minutes."""
_SAY_S = 10.0
_IDLE_S = 60.0
_POLL_S = 0.1


class ServerControl:
    """Sends commands to a server. Every method raises EngineError with the server's message if the server refuses."""

    def __init__(self, url: str) -> None:
        address = Address.read(url)
        self.url = address.url
        self._connections = Connections(address, limit=4, keep_alive=False)

    async def is_up(self) -> bool:
        """Whether the model is loaded and generates. Do not ask a sleeping server: the check would make the server
        generate."""
        try:
            await self._connections.get(f"{self.url}/health", _SAY_S)
        except (EngineError, TimeoutError):
            return False
        return True

    async def answers(self) -> bool:
        """Whether the server responds at all."""
        try:
            await self.model_info()
        except UnavailableError:
            return False
        except EngineError:
            return True
        return True

    async def model_info(self) -> Mapping[str, Any]:
        return await self._get("/model_info", "/get_model_info")

    async def server_info(self) -> Mapping[str, Any]:
        return await self._get("/server_info", "/get_server_info")

    async def update_from_disk(self, folder: str, version: str) -> None:
        """Load the weights of a folder. The server reports these weights as `version` from then on."""
        await self._post("/update_weights_from_disk", {"model_path": folder, "weight_version": version})

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter. Never use its name or folder again for a different adapter."""
        await self._post("/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    async def unload_adapter(self, name: str) -> None:
        await self._post("/unload_lora_adapter", {"lora_name": name})

    async def release(self, tags: Sequence[str]) -> None:
        """Release the memory with these tags. The server must be idle, otherwise an assertion stops the server's
        scheduler."""
        await self._post("/release_memory_occupation", {"tags": list(tags)})

    async def resume(self, tags: Sequence[str]) -> None:
        """Take back the memory that was released with exactly these tags."""
        await self._post("/resume_memory_occupation", {"tags": list(tags)})

    async def until_idle(self) -> None:
        """Wait until no request runs. While a request runs, the server refuses to flush its cache."""
        deadline = time.monotonic() + _IDLE_S
        while True:
            try:
                await self._post("/flush_cache", {})
            except RequestError as exc:
                if time.monotonic() > deadline:
                    raise EngineError(f"{exc}; after {_IDLE_S:g} s the server still runs requests of others") from exc
            else:
                return
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        await self._connections.close()

    async def _get(self, path: str, older: str) -> Mapping[str, Any]:
        try:
            answer = await self._ask(path)
        except UnavailableError:
            raise
        except EngineError:
            answer = await self._ask(older)
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise EngineError(f"{self.url}{path}: no JSON object; is this an SGLang server?")
        return value

    async def _ask(self, path: str) -> bytes:
        try:
            return await self._connections.get(f"{self.url}{path}", _SAY_S)
        except TimeoutError as exc:
            raise UnavailableError(f"{self.url}{path}: no answer within {_SAY_S:g} s") from exc

    async def _post(self, path: str, body: Mapping[str, JSON]) -> None:
        """Send a command. A response with `success: false` is a refusal, whatever its status."""
        url = f"{self.url}{path}"
        try:
            answer = await self._connections.post(url, json.dumps(body).encode(), {}, _LOAD_S)
        except TimeoutError as exc:
            raise UnavailableError(f"{url}: no answer within {_LOAD_S:g} s") from exc
        try:
            content = json.loads(answer)
        except ValueError:
            return
        if isinstance(content, dict) and content.get("success") is False:
            raise EngineError(f"{url}: {content.get('error_message') or error_message(answer)}")
