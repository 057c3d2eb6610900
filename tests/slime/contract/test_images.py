"""A host's own rollout of rows with images, down to the tensors that its trainer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from agentrl.models import load_tokenizer
from tests import tiny_vlm
from tests.test_images import A, B, C

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


@pytest.mark.path("images: rows, turns and the tensors of the trainer")
def test_rows_with_images_reach_the_ranks_with_their_pixels(host, start, tmp_path):
    host.need(host.has("multimodal_train_inputs"), "a Sample with multimodal_train_inputs")
    folder, asked = str(tiny_vlm.folder("qwen3_vl")), list[dict[str, Any]]()
    rows = []
    for number, image in enumerate((A, C, A, C)):
        file = tmp_path / f"{number}.png"
        file.write_bytes(image.data)
        rows.append({"prompt": "<image>Which colour?", "label": "red", "images": [str(file)]})
    run = start(
        rows,
        agentrl={"env": "tests.slime.picture_env:Pictures"},
        middlewares=(server(folder, asked),),
        hf_checkpoint=folder,
        multimodal_keys={"image": "images"},
    )
    samples, data, ranks = run.train()
    pad = load_tokenizer(folder).convert_tokens_to_ids("<|image_pad|>")
    assert {sample.status for sample in samples} == {host.Status.COMPLETED}
    assert all(body["input_ids"].count(pad) == len(body["image_data"]) for body in asked)
    for sample, inputs in zip(samples, data["multimodal_train_inputs"], strict=True):
        merged = [int(grid.prod()) // 4 for grid in inputs["image_grid_thw"]]
        assert merged[0] in EXPANDED.values()
        assert merged[1] == SHOWN
        assert sample.tokens.count(pad) == sum(merged)
        assert len(inputs["pixel_values"]) == 4 * sum(merged)
        assert sum(sample.loss_mask) == 8, "two turns of four tokens are trained, and no pad"
    assert sum(len(rank["multimodal_train_inputs"]) for rank in ranks) == len(samples)
