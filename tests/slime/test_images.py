"""Images under slime: from a row's messages to the tensors that its trainer reads beside the tokens."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image as Pillow

from agentrl import ConfigError, Image, adapt
from agentrl.engine import ScriptedEngine
from agentrl.engine.sglang import SGLangEngine
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.render import load_renderer
from agentrl.slime.task import from_sample
from tests.doubles import tiny_vlm
from tests.episode.pictures import A, B
from tests.slime.conftest import Sample as TextSample
from tests.slime.conftest import slime_args
from tests.slime.picture_samples import Sample

PARAMS = {"max_new_tokens": 64, "temperature": 1.0}


@dataclass
class Taught(Sample):
    teacher_log_probs: Any = None


def pictures(**args: Any):
    return slime_args(args=args, env="tests.slime.picture_env:Pictures")


@pytest.fixture
def model() -> str:
    return str(tiny_vlm.folder("qwen3_vl"))


def asking(image: Any) -> Sample:
    """A sample as slime makes it of a row with an image, under --multimodal-keys '{"image": "images"}'."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": "Which colour?"}]
    return Sample(prompt=[{"role": "user", "content": content}], multimodal_inputs={"images": [image]}, label="red")


@pytest.fixture
def scripted(monkeypatch, model):
    """The model's turns by a script. Every request's images are kept."""
    renderer = load_renderer(load_tokenizer(model), vision=load_vision(model))
    engine = ScriptedEngine(["red", "blue"], renderer)

    async def generate(self, *args, extra=None, **kwargs):
        return await engine.generate(*args, **kwargs)

    async def context_length(self):
        return 4096

    monkeypatch.setattr(SGLangEngine, "generate", generate)
    monkeypatch.setattr(SGLangEngine, "context_length", context_length)
    return engine


@pytest.mark.parametrize("form", ["path", "uri", "pil", "bytes", "datasets"])
def test_a_row_names_its_image_as_data_sets_do(form, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(A.data)
    given = {
        "path": str(file),
        "uri": A.uri,
        "pil": Pillow.open(io.BytesIO(A.data)),
        "bytes": A.data,
        "datasets": {"bytes": A.data, "path": None},
    }[form]
    task = from_sample(slime_args(), asking(given))
    found = Image(task.prompt[0]["content"][0]["image"])
    with Pillow.open(io.BytesIO(found.data)) as shown, Pillow.open(file) as kept:
        assert shown.tobytes() == kept.tobytes()


@pytest.mark.parametrize("given", ["https://example.com/a.png", "/nowhere/a.png", b"GIF89a", 7])
def test_an_image_that_cannot_be_read_names_the_row(given):
    with pytest.raises(ConfigError, match="row's image"):
        from_sample(slime_args(), asking(given))


async def test_the_trainer_gets_expanded_pads_and_their_pixels(model, scripted):
    vision = load_vision(model)
    sample = await adapt(pictures(hf_checkpoint=model), asking(A.uri), PARAMS)
    given = sample.multimodal_train_inputs
    assert scripted.images[-1] == [A, B]
    assert sample.tokens.count(vision.pad) == int(given["image_grid_thw"].prod(-1).sum()) // 4
    assert given["pixel_values"].dtype == torch.bfloat16
    assert set(given) == {"pixel_values", "image_grid_thw"}, "slime passes each to the model by name"
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    response = sample.tokens[-sample.response_length :]
    assert not any(mask for mask, token in zip(sample.loss_mask, response, strict=True) if token == vision.pad)
    joined = {key: torch.cat([given[key], given[key]]) for key in given}  # as slime's get_batch does
    assert len(joined["image_grid_thw"]) == 4


async def test_a_teacher_is_given_one_pad_and_the_images(model, scripted):
    vision, asked = load_vision(model), []

    async def generate(request):
        body = await request.json()
        asked.append(body)
        ids, _ = vision.place(body["input_ids"], [Image(uri) for uri in body["image_data"]])
        entries = [[-token / 1000, 0 if token == vision.pad else token, None] for token in ids]
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": entries}})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/generate", generate)
    async with TestServer(app) as teacher:
        flags = {"use_opd": True, "opd_type": "sglang", "rollout_temperature": 1.0}
        args = pictures(hf_checkpoint=model, rm_url=str(teacher.make_url("/generate")), **flags)
        sample = await adapt(args, Taught(**vars(asking(A.uri))), PARAMS)
    assert [body["image_data"] for body in asked] == [[A.uri, B.uri]]
    response = sample.tokens[-sample.response_length :]
    expected = [0.0 if token == vision.pad else -token / 1000 for token in response]
    assert sample.teacher_log_probs.tolist() == pytest.approx(expected)


async def test_an_episode_whose_image_only_the_engine_could_read_is_not_trained(model, scripted):
    cut = Image.of(A.data[: len(A.data) // 2])
    sample = await adapt(pictures(hf_checkpoint=model), asking(cut.uri), PARAMS)
    assert (sample.status.value, sample.remove_sample, sum(sample.loss_mask)) == ("failed", True, 0)
    assert "an image that the trainer cannot read" in sample.metadata["agentrl"]["failure"]["error"]
    assert sample.multimodal_train_inputs is None


async def test_a_sample_without_the_field_is_refused(model, scripted):
    plain = TextSample(prompt=asking(A.uri).prompt)
    with pytest.raises(ConfigError, match="multimodal_train_inputs"):
        await adapt(pictures(hf_checkpoint=model), plain, PARAMS)


@pytest.mark.parametrize(
    ("args", "fields", "why"),
    [
        ({"use_rollout_routing_replay": True}, {}, "remove --use-rollout-routing-replay"),
        ({}, {"multimodal_inputs": {"videos": ["x"]}}, "remove videos from --multimodal-keys"),
        ({"hf_checkpoint": "tiny"}, {}, "not known to read images"),
    ],
)
async def test_what_cannot_be_shown_or_replayed_is_refused_by_name(model, scripted, args, fields, why):
    sample = asking(A.uri)
    for name, value in fields.items():
        setattr(sample, name, value)
    given = {"hf_checkpoint": model, **args}
    with pytest.raises(ConfigError, match=why):
        await adapt(pictures(**given), sample, PARAMS)
