"""List and remove the containers, networks and volumes of sandboxes on an engine. Labels identify their sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from aiodocker import DockerError

from agentrl._util.concurrency import gather
from agentrl_sandbox.docker.container import SANDBOX
from agentrl_sandbox.docker.engine import DockerClient

_AT_ONCE = 8
"""The most removals at the same time."""
_REMOVALS_S = (0.1, 0.3, 1.0, 2.0, 0.0)
"""Seconds to pause after the engine has refused a removal: the engine notices late that a network is unused."""


async def remove_groups(engine: DockerClient, sandbox_ids: Sequence[str]) -> None:
    """Remove sandboxes with their services, networks and volumes. Missing parts are not an error.

    All removable parts are removed before an error is raised.
    """
    resources = await labelled(engine, sandbox_ids[0] if len(sandbox_ids) == 1 else "")
    room, ids, failures = asyncio.Semaphore(_AT_ONCE), set(sandbox_ids), list[DockerError]()

    async def one(removal: Awaitable[None]) -> None:
        async with room:
            try:
                await removal
            except DockerError as exc:
                failures.append(exc)

    await gather(one(remove_container(engine, name)) for name, owner in resources.containers if owner in ids)
    things = [(f"networks/{name}", owner) for name, owner in resources.networks]
    things += [(f"volumes/{name}", owner) for name, owner in resources.volumes]
    await gather(one(_remove_thing(engine, path)) for path, owner in things if owner in ids)
    if failures:
        raise failures[0]


class Labelled:
    """The objects on an engine with the label of a sandbox, as pairs (name, sandbox)."""

    def __init__(
        self, containers: Sequence[Any], networks: Sequence[Mapping[str, Any]], volumes: Sequence[Mapping[str, Any]]
    ) -> None:
        self.labels = [
            *(resource["Labels"] for resource in containers),
            *(resource["Labels"] for resource in networks),
            *(resource["Labels"] for resource in volumes),
        ]
        self.containers = [(str(resource["Id"]), resource["Labels"][SANDBOX]) for resource in containers]
        self.networks = [(str(resource["Id"]), resource["Labels"][SANDBOX]) for resource in networks]
        self.volumes = [(str(resource["Name"]), resource["Labels"][SANDBOX]) for resource in volumes]


async def labelled(engine: DockerClient, sandbox_id: str = "") -> Labelled:
    """The engine's labelled objects. With `sandbox_id`, only this sandbox's objects."""
    parameters = {"filters": json.dumps({"label": [f"{SANDBOX}={sandbox_id}" if sandbox_id else SANDBOX]})}
    query = engine.docker._query_json
    containers = await query("containers/json", params={**parameters, "all": "1"})
    networks = await query("networks", params=parameters)
    volumes = await query("volumes", params=parameters)
    return Labelled(containers, networks, volumes["Volumes"] or [])


async def remove_container(engine: DockerClient, name: str) -> None:
    """Remove a container with the container's volumes. A missing container is not an error."""
    try:
        await engine.docker.containers.container(name).delete(force=True, v=True)
    except DockerError as exc:
        if exc.status == 409:  # a parallel removal runs at this moment
            await asyncio.sleep(0.2)
        elif exc.status != 404:
            raise


async def _remove_thing(engine: DockerClient, path: str) -> None:
    """Remove a network or a volume. The engine notices the end of the last container a moment late."""
    for pause in _REMOVALS_S:
        try:
            async with engine.docker._query(path, "DELETE") as response:
                await response.read()
        except DockerError as exc:
            if exc.status == 404:
                return
            if exc.status not in (403, 409) or not pause:
                raise
            await asyncio.sleep(pause)
        else:
            return
