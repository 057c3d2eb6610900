"""A host's own rollout of rows with images, down to the tensors that its trainer reads."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.models import load_tokenizer
from tests.doubles import tiny_vlm
from tests.episode.pictures import A, C
from tests.slime.picture_server import EXPANDED, SHOWN, server


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
