"""TEMPORARY: the weight endpoints of the prototype, until agentrl.engine.sglang has its own."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from aiohttp import web


def add_routes(server: Any, engine: Any, arguments: dict[str, Any]) -> None:
    extra = _Extra(engine, arguments)
    routes_of = server._EngineServer.routes

    def routes(self: Any) -> Any:
        mine = extra.routes()
        paths = {route.path for route in mine}
        return [*(route for route in routes_of(self) if route.path not in paths), *mine]

    server._EngineServer.routes = routes


class _Extra:
    def __init__(self, engine: Any, arguments: dict[str, Any]) -> None:
        self.engine, self.arguments, self.groups = engine, arguments, {}
        self.weights = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        self.snapshot: dict[str, torch.Tensor] = {}

    def routes(self) -> list[web.RouteDef]:
        names = (
            "update_weights_from_tensor init_weights_update_group destroy_weights_update_group "
            "update_weights_from_distributed release_memory_occupation resume_memory_occupation weights_checker "
            "post_process_weights"
        ).split()
        return [
            *(web.post(f"/{name}", getattr(self, name)) for name in names),
            web.get("/get_weight_version", self.get_weight_version),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
        ]

    def load(self, named: Any, version: Any) -> None:
        tied = bool(getattr(self.engine.engine._model.config, "tie_word_embeddings", False))
        for name, tensor in named:
            if name not in self.weights:
                raise web.HTTPBadRequest(text=f"no weight {name}")
            if self.weights[name].shape != tensor.shape:
                raise web.HTTPBadRequest(text=f"{name}: {tuple(tensor.shape)} for {tuple(self.weights[name].shape)}")
            self.weights[name] = tensor.to(self.weights[name].dtype)
            if tied and name == "model.embed_tokens.weight" and "lm_head.weight" in self.weights:
                self.weights["lm_head.weight"] = self.weights[name]
        self.engine.load_weights(self.weights, str(version or self.engine.weight_version))

    async def server_info(self, request: web.Request) -> web.Response:
        context = await self.engine.context_length()
        return web.json_response(
            {**self.arguments, "context_length": context, "max_total_num_tokens": context, "version": "agentrl"}
        )

    async def get_weight_version(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": str(self.engine.weight_version)})

    async def update_weights_from_tensor(self, request: web.Request) -> web.Response:
        from agentrl.rehearse.standins.tensors import FlattenedTensorBucket, MultiprocessingSerializer

        body = await request.json()
        for text in body["serialized_named_tensors"]:
            tensors = MultiprocessingSerializer.deserialize(text)
            if body.get("load_format") == "flattened_bucket":
                tensors = FlattenedTensorBucket(**tensors).reconstruct_tensors()
            self.load(tensors, body.get("weight_version"))
        return web.json_response({"success": True, "message": "ok"})

    async def init_weights_update_group(self, request: web.Request) -> web.Response:
        from slime.utils.distributed_utils import init_process_group

        body = await request.json()
        self.groups[body["group_name"]] = await asyncio.to_thread(
            init_process_group,
            backend=body["backend"],
            init_method=f"tcp://{body['master_address']}:{body['master_port']}",
            world_size=body["world_size"],
            rank=body["rank_offset"],
            group_name=body["group_name"],
        )
        return web.json_response({"success": True, "message": "ok"})

    async def destroy_weights_update_group(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (group := self.groups.pop(body["group_name"], None)) is not None:
            torch.distributed.destroy_process_group(group)
        return web.json_response({"success": True, "message": "ok"})

    async def update_weights_from_distributed(self, request: web.Request) -> web.Response:
        body = await request.json()
        group = self.groups[body["group_name"]]

        def receive() -> Any:
            named, handles = [], []
            for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
                handles.append(torch.distributed.broadcast(tensor, src=0, group=group, async_op=True))
                named.append((name, tensor))
            for handle in handles:
                handle.wait()
            return named

        self.load(await asyncio.to_thread(receive), body.get("weight_version"))
        return web.json_response({"success": True, "message": "ok"})

    async def release_memory_occupation(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})

    resume_memory_occupation = post_process_weights = release_memory_occupation

    async def weights_checker(self, request: web.Request) -> web.Response:
        action = (await request.json())["action"]
        if action == "snapshot":
            self.snapshot = {name: tensor.clone() for name, tensor in self.weights.items()}
        elif action == "reset_tensors":
            self.load([(name, torch.randn_like(tensor)) for name, tensor in self.weights.items()], None)
        elif action == "compare":
            wrong = [n for n, t in self.snapshot.items() if not torch.equal(t.bfloat16(), self.weights[n].bfloat16())]
            if wrong:
                return web.json_response({"success": False, "message": f"differ: {wrong[:5]}"}, status=400)
        return web.json_response({"success": True})
