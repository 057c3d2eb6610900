"""One pull of an image by an engine, with the credentials of this machine's user, and with reports of progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from aiodocker import Docker, DockerError

from agentrl_sandbox.docker.registries import ImageName, credentials

Progress: TypeAlias = Callable[[int, int], None]
"""Called with two sizes in bytes: downloaded so far, and the compressed size of the layers announced so far."""


async def fetch(docker: Docker, name: ImageName, heard: Progress) -> None:
    """Let the engine pull an image. A cancellation ends the pull. Raises DockerError, and any error of `heard`."""
    header = await credentials(name.registry)
    headers = {"X-Registry-Auth": header} if header else {}
    query = {"fromImage": str(name)}
    done, sizes = dict[str, int](), dict[str, int]()
    sent = docker._query("images/create", "POST", params=query, headers=headers, timeout=None)
    async with sent as response:
        async for line in response.content:
            event: dict[str, Any] = json.loads(line)
            if error := event.get("error"):
                raise DockerError(500, str(error))
            detail = event.get("progressDetail") or {}
            if event.get("status") == "Downloading" and detail.get("total"):
                done[event["id"]], sizes[event["id"]] = detail.get("current", 0), detail["total"]
                heard(sum(done.values()), sum(sizes.values()))
