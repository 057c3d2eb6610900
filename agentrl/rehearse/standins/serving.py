"""The server of an engine, as slime's SGLangEngine starts it: agentrl's LocalEngine with SGLang's endpoints.

Each generation is appended to `$AGENTRL_REHEARSAL/engine/PID.jsonl`: a line of JSON with `t`, `input_ids`,
`output_ids`, `log_probs`, `weight_version` (of the last token) and `finish`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.rehearse.standins import events
from agentrl.types import Generation, SamplingParams

CONFIG_VARIABLE = "AGENTRL_REHEARSAL_ENGINE"
"""Environment variable: keyword arguments of LocalEngine, as JSON."""


def launch_server(server_args: Any) -> None:
    """Serve until the process ends. Serves slime/backends/sglang_utils/sglang_engine.py."""
    import torch

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="[engine %(process)d] %(asctime)s %(name)s - %(message)s"
    )
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with events.only_errors("engines"):
        asyncio.run(_serve(server_args))


async def _serve(args: Any) -> None:
    from agentrl.engine.local import LocalEngine
    from agentrl.engine.sglang import server
    from agentrl.models import load_model, load_tokenizer
    from agentrl.models.vision import load_vision
    from agentrl.render import load_renderer

    tokenizer, vision = load_tokenizer(args.model_path), load_vision(args.model_path)
    renderer = load_renderer(tokenizer, vision=vision)
    config = json.loads(os.environ.get(CONFIG_VARIABLE, "{}"))
    model = load_model(args.model_path, device="cpu")
    async with LocalEngine(model, tokenizer, vision=vision, **config) as engine:
        log_generations(engine, Path(os.environ[events.FOLDER_VARIABLE]) / f"engine/{os.getpid()}.jsonl")
        await server.serve(
            engine,
            args.host,
            args.port,
            model_name=args.model_path,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            decode=renderer.decode,
            server_args=asdict(args),
            on_ready=lambda url: logging.info("ready: %s", url),
        )


def log_generations(engine: Any, file: Path) -> None:
    """Let an engine append each generation to `file`."""
    generate = engine.generate

    async def logged(input_ids: Sequence[int], sampling_params: SamplingParams, **fields: Any) -> Generation:
        generation: Generation = await generate(input_ids, sampling_params, **fields)
        line = {
            "t": time.time(),
            "input_ids": list(input_ids),
            "output_ids": list(generation.tokens),
            "log_probs": list(generation.log_probs),
            "weight_version": generation.weight_version,
            "finish": generation.finish_reason,
        }
        events.append(file, line)
        return generation

    engine.generate = logged


def kill_process_tree(pid: int, include_parent: bool = True, skip_pid: int | None = None) -> None:
    """Kill the children of a process, and the process itself. Serves SGLangEngine.shutdown of slime."""
    import psutil

    try:
        parent = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    for process in [*parent.children(recursive=True), *([parent] if include_parent else [])]:
        if process.pid != skip_pid:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
