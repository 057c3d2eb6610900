"""Stands in for an interpreter that has SGLang, with a model: `agentrl_launch.py -m sglang.launch_server FLAGS` serves
the weights of --model-path by agentrl's own server."""

from __future__ import annotations

import asyncio
import sys


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


async def main() -> None:
    from agentrl.engine import LocalEngine
    from agentrl.engine.sglang.server import running_server
    from agentrl.models import load_model, load_tokenizer

    folder = flag("--model-path")
    engine = LocalEngine(load_model(folder), load_tokenizer(folder), max_context=500)
    async with running_server(engine, port=int(flag("--port")), model_name=flag("--served-model-name")):
        await asyncio.Event().wait()


if __name__ == "__main__" and sys.argv[1] != "-c":  # with -c: whether SGLang is installed
    asyncio.run(main())
