"""Play actions through openenv's client. stdin: [[url, seed, [action, ...]], ...]; stdout: the results."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openenv.core.generic_client import GenericEnvClient


async def played(url: str, seed: int, actions: list[dict[str, Any]]) -> list[Any]:
    async with GenericEnvClient(base_url=url) as env:
        said = [await env.reset(seed=seed)]
        said += [await env.step(action) for action in actions]
    return [[one.observation, one.reward, one.done] for one in said]


async def main() -> None:
    print(json.dumps([await played(*play) for play in json.load(sys.stdin)]))


asyncio.run(main())
