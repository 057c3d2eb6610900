"""What a sandbox has made on an engine."""

import json

from agentrl_sandbox.docker.container import SANDBOX


async def things(docker, sandbox_id):
    """What an engine has of a sandbox: containers, networks, volumes."""
    query, label = docker.engine.docker._query_json, json.dumps({"label": [f"{SANDBOX}={sandbox_id}"]})
    containers = await query("containers/json", params={"all": "1", "filters": label})
    networks = await query("networks", params={"filters": label})
    volumes = await query("volumes", params={"filters": label})
    return len(containers), len(networks), len(volumes["Volumes"] or ())
