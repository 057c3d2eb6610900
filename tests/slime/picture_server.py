"""An SGLang for a tiny Qwen3-VL: it expands images as the real one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from agentrl.models import load_tokenizer
from tests.episode.pictures import A, B, C

SIDE = 32
"""Pixels of a merged patch of the tiny Qwen3-VL."""
EXPANDED = {image.uri: max(4, round(image.width / SIDE) * round(image.height / SIDE)) for image in (A, C)}
"""How many pads stand for an image: computed apart from the image processor, for images within its bounds."""


def server(folder: str, asked: list[dict[str, Any]]) -> Callable[..., Any]:
    """An SGLang that expands each image's pad, and says "red"."""
    tokenizer = load_tokenizer(folder)
    said = [*tokenizer.encode("red", add_special_tokens=False), tokenizer.eos_token_id]

    @web.middleware
    async def answer(request: web.Request, handler: Any) -> Any:
        if request.path != "/generate":
            return await handler(request)
        body = await request.json()
        asked.append(body)
        pads = sum(_expanded(uri) - 1 for uri in body.get("image_data") or ())
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": "stop", "matched": said[-1]},
            "prompt_tokens": len(body["input_ids"]) + pads,
            "completion_tokens": len(said),
            "cached_tokens": 0,
            "weight_version": "1",
            "output_token_logprobs": [[-0.5, token, None] for token in said],
        }
        return web.json_response({"text": "red", "output_ids": said, "meta_info": meta})

    return answer


def _expanded(uri: str) -> int:
    return EXPANDED.get(uri) or SHOWN


SHOWN = round(B.width / SIDE) * round(B.height / SIDE)
"""Of the image that the Env shows."""
