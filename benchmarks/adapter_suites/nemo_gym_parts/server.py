"""A resource server of NeMo Gym, its `simple_agent`, and a model that plays a script: NAME and three ports."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from fastapi import FastAPI
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig

HOST = "127.0.0.1"


def client(ports: dict[str, int]) -> ServerClient:
    kinds = {"resource": "resources_servers", "model": "responses_api_models", "agent": "responses_api_agents"}
    servers = {name: {kinds[name]: {name: {"host": HOST, "port": port}}} for name, port in ports.items()}
    config = OmegaConf.create(servers)
    os.environ["NEMO_GYM_CONFIG_DICT"] = OmegaConf.to_yaml(config)
    return ServerClient(head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict=config)


def resource_server(name: str, port: int, servers: ServerClient) -> FastAPI:
    module = import_module(f"resources_servers.{name}.app")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    (cls,) = [
        each for each in classes if issubclass(each, SimpleResourcesServer) and each.__module__ == module.__name__
    ]
    settings: dict[str, Any] = {}
    for file in sorted((Path(module.__file__).parent / "configs").glob("*.y*ml")):
        for part in yaml.safe_load(file.read_text()).values():
            for of_server in (part.get("resources_servers") or {}).values() if isinstance(part, dict) else ():
                settings = settings or of_server
    settings = {**settings, "host": HOST, "port": port, "name": "resource", "entrypoint": "app.py"}
    config = cls.model_fields["config"].annotation.model_validate(settings)
    return cls(config=config, server_client=servers).setup_webserver()


def model_server() -> FastAPI:
    app, script = FastAPI(), []

    @app.post("/script")
    async def set_script(body: list[Any]) -> None:
        script[:] = body

    @app.post("/v1/responses")
    async def respond(body: dict[str, Any]) -> Any:
        item = script.pop(0)
        head = {"id": "resp_1", "object": "response", "created_at": 0, "model": "scripted", "output": [item]}
        return {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools") or []}

    return app


async def main() -> None:
    name, ports = sys.argv[1], dict(zip(("resource", "model", "agent"), map(int, sys.argv[2:]), strict=True))
    servers = client(ports)
    agent = SimpleAgent(
        config=SimpleAgentConfig(
            host=HOST,
            port=ports["agent"],
            entrypoint="app.py",
            name="agent",
            resources_server=ResourcesServerRef(type="resources_servers", name="resource"),
            model_server=ModelServerRef(type="responses_api_models", name="model"),
        ),
        server_client=servers,
    )
    apps = {
        "model": model_server(),
        "agent": agent.setup_webserver(),
        "resource": resource_server(name, ports["resource"], servers),
    }
    configs = [uvicorn.Config(app, host=HOST, port=ports[kind], log_level="error") for kind, app in apps.items()]
    await asyncio.gather(*(uvicorn.Server(config).serve() for config in configs))


if __name__ == "__main__":
    asyncio.run(main())
