"""The engine of the loop, over HTTP: agentrl's LocalEngine, served in this process, or SGLang behind its router."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import device
import requests
from aiohttp import web
from torch import Tensor

from agentrl.engine.local import LocalEngine
from agentrl.engine.sglang.server import create_app
from agentrl.models import load_model, load_tokenizer, save_model

_PATIENCE_S = 120


@contextmanager
def served(folder: Path, dtype: str) -> Iterator[str]:
    """Serve agentrl's LocalEngine within `with`, on a separate event loop, as slime's router is a separate process."""
    tokenizer = load_tokenizer(str(folder))
    engine = LocalEngine(load_model(str(folder), device=device.name(), dtype=dtype), tokenizer, max_batch=128)
    app = create_app(engine, model_name=str(folder), decode=tokenizer.decode)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def stop() -> None:
        await runner.cleanup()
        await engine.close()

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(_PATIENCE_S)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(_PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Handover:
    """Writes the trainer's weights as a Hugging Face folder, and loads them into every worker behind `url` as a new
    version."""

    def __init__(self, model: Path, folder: Path, url: str | None, dtype: str) -> None:
        self.model, self.tokenizer = load_model(str(model), dtype=dtype), load_tokenizer(str(model))
        self.folder, self.url = folder.absolute(), url

    def __call__(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.model.load_state_dict(weights, strict=False)  # a tied output matrix is the input's
        save_model(self.model, self.tokenizer, self.folder)
        if self.url is None:
            return
        found = requests.get(f"{self.url}/workers", timeout=_PATIENCE_S)
        found.raise_for_status()
        update = {"model_path": str(self.folder), "weight_version": str(version)}
        for worker in [worker["url"] for worker in found.json()["workers"]]:
            # Between two generations, in the order in which slime does it.
            _post(f"{worker}/pause_generation", {})
            _post(f"{worker}/flush_cache", {})
            _post(f"{worker}/update_weights_from_disk", update)
            _post(f"{worker}/continue_generation", {})


def _post(url: str, body: dict[str, Any]) -> None:
    answer = requests.post(url, json=body, timeout=_PATIENCE_S)
    answer.raise_for_status()
