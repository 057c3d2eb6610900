"""Images in prompts, observations and tool results: pads in the trained tokens, files to the engine, bounds."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random

import numpy as np
import pytest
from PIL import Image as Pillow

from agentrl import (
    ConfigError,
    Env,
    Generation,
    Image,
    Limits,
    Raw,
    StepResult,
    StopReason,
    Task,
    TemplateError,
    Trajectory,
    load_renderer,
    resume_episode,
    run_episode,
    tool,
)
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.image import normal_content, parts_of
from agentrl.models import load_tokenizer
from agentrl.models.pixels import PatchWriter
from agentrl.models.vision import Vision, load_vision
from agentrl.testing import call
from tests.doubles import tiny_vlm
from tests.episode.pictures import SCRIPT, A, B, C, Screens, picture

KINDS = ("qwen2_5_vl", "qwen3_vl")


BIG, BIG_TOO = picture(400, 300, 3), picture(410, 300, 4)


@pytest.fixture(scope="module", params=KINDS)
def vision(request) -> Vision:
    return load_vision(str(tiny_vlm.folder(request.param)))


@pytest.fixture(scope="module")
def renderer(vision):
    return load_renderer(load_tokenizer(str(vision.folder)), vision=vision)


async def play(renderer, turns=SCRIPT, env=None, hooks=None, **limits) -> tuple[Trajectory, ScriptedEngine]:
    engine = ScriptedEngine(turns, renderer)
    played = await run_episode(
        env or Screens(),
        Task(prompt="unused"),
        engine=engine,
        renderer=renderer,
        options=EpisodeOptions(limits=Limits(**limits)),
        hooks=hooks,
    )
    return played, engine


def pads_of(vision: Vision, trajectory: Trajectory) -> int:
    return sum(trajectory.tokens.count(pad) for pad in vision.forbidden)


async def test_prompt_step_and_tool_show_images(vision, renderer):
    t, engine = await play(renderer)
    assert t.failure is None, t.failure
    t.verify()
    assert engine.images == [[A], [A, B], [A, B, C]], "each request has all images so far"
    for request, images in zip(engine.requests, engine.images, strict=True):
        assert request.count(vision.pad) == len(images), "an engine gets one pad for each image"
    counts = [vision.count(image) for image in (A, B, C)]
    assert t.tokens.count(vision.pad) == sum(counts), "the trainer gets one pad for each merged patch"
    assert [one.stop - one.start for one in t.segment.media] == counts
    assert t.ledger.sampled == t.ledger.trained
    first = t.segment.media[0]
    expanded = [*engine.requests[0][: first.start], *[vision.pad] * counts[0], *engine.requests[0][first.start + 1 :]]
    assert expanded == t.tokens[: t.prompt_length]


async def test_the_features_are_those_of_the_trained_pads(vision, renderer):
    t, _ = await play(renderer)
    tensors = vision.tensors(t.segment.images)
    merged = tensors["image_grid_thw"].prod(-1) // 4
    assert merged.tolist() == [one.stop - one.start for one in t.segment.media]
    assert len(tensors["pixel_values"]) == int(tensors["image_grid_thw"].prod(-1).sum())
    alone = vision.tensors([B])["pixel_values"]
    start = int(tensors["image_grid_thw"][0].prod())
    assert (tensors["pixel_values"][start : start + len(alone)] == alone).all()


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (300, 200), (33, 500)])
def test_pixels_are_those_of_the_processor_with_torchvision(vision, size):
    """Its resize is torch's own. Without it, only the processor's own scaling can be compared."""
    import torch
    from transformers.utils import is_torchvision_available

    image, exact = picture(*size, seed=5), is_torchvision_available()
    with Pillow.open(io.BytesIO(image.data)) as opened:
        given = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)[None]
    side = vision.processor.patch_size * vision.processor.merge_size
    bounds = [side * count for count in vision.grid(image)]
    resized = torch.nn.functional.interpolate(given, bounds, mode="bicubic", antialias=True)[0]
    shown = Pillow.fromarray((given[0] if exact else resized).permute(1, 2, 0).contiguous().numpy())
    expected = vision.processor(images=[shown], return_tensors="pt", do_resize=exact)
    for dtype in (torch.float32, torch.bfloat16):
        found = vision.tensors([image, image], str(dtype).removeprefix("torch."))
        apart = 0.0 if exact else {torch.float32: 1e-5, torch.bfloat16: 0.01}[dtype]
        for part in found["pixel_values"].chunk(2):
            assert part.dtype == dtype
            assert torch.allclose(part, expected["pixel_values"].to(dtype), rtol=0.0, atol=apart)
        assert found["image_grid_thw"].tolist() == expected["image_grid_thw"].tolist() * 2


def test_a_processor_with_other_pixels_is_used_itself(vision):
    class Brighter:
        def __getattr__(self, name):
            return getattr(vision.processor, name)

        def __call__(self, **given):
            found = vision.processor(**given)
            return {**found, "pixel_values": found["pixel_values"] + 0.5}

    assert PatchWriter(vision.processor).agrees
    assert not PatchWriter(Brighter()).agrees


@pytest.mark.parametrize("cut", [60, 2000])
def test_a_damaged_file_names_its_image(vision, cut):
    """Wherever it is among others, which several threads read."""
    damaged = Image.of(picture(120, 90, seed=7).data[:cut])
    with pytest.raises(ValueError, match=r"Image 120 x 90, .* is damaged, or too large to read"):
        vision.tensors([A, B, damaged, A])
    data = bytearray(A.data)
    data[16:24] = (30_000).to_bytes(4) * 2
    bomb = Image.of(bytes(data))
    with pytest.raises(ValueError, match=r"30000 x 30000.* is damaged, or too large to read"):
        vision.tensors([bomb])


async def test_a_trajectory_with_images_is_json_and_comes_back(renderer):
    t, _ = await play(renderer)
    again = Trajectory.from_json(json.loads(json.dumps(t.to_json())))
    assert again.tokens == t.tokens
    assert again.segment.media == t.segment.media
    assert again.segment.engine_ids == t.segment.engine_ids
    assert again.messages == t.messages


async def test_an_episode_that_was_aborted_resumes_with_its_images(renderer):
    whole, _ = await play(renderer)
    parked, flag = [], [False]

    class Replayed(Screens):
        deterministic = True

    async def keep(one):
        parked.append(one)

    def stop(trajectory):
        flag[0] = len(trajectory.turns) == 1

    hooks = EpisodeHooks(aborted=lambda: flag[0], park=keep, on_turn=stop)
    t, engine = await play(renderer, env=Replayed(), hooks=hooks)
    assert t.stop is StopReason.ABORTED
    flag[0] = False
    assert len(parked) == 1
    resumed = await resume_episode(
        parked[0], Replayed(), engine=engine, renderer=renderer, hooks=EpisodeHooks(aborted=lambda: False)
    )
    assert resumed.tokens == whole.tokens
    assert resumed.segment.media == whole.segment.media
    assert engine.images[-1] == [A, B, C]


@pytest.mark.parametrize("seed", range(64))
async def test_pads_equal_images_whatever_is_cut(vision, renderer, seed):
    chance = random.Random(seed)
    shown = [chance.choice(["words " * chance.randint(1, 30), A, B, C]) for _ in range(chance.randint(1, 6))]

    class Cut(Env):
        async def reset(self, task):
            return [{"role": "user", "content": ["Go.", chance.choice([A, B, C])]}]

        async def step(self, action):
            return StepResult(shown, done=action.content == "end")

    t, engine = await play(renderer, ["one", "two", "end"], Cut(), observation_tokens=chance.randint(1, 90))
    assert t.failure is None, t.failure
    t.verify()
    for request, images in zip(engine.requests, engine.images, strict=True):
        assert request.count(vision.pad) == len(images)
    assert t.tokens.count(vision.pad) == sum(vision.count(image) for image in t.segment.images)


async def test_an_observation_keeps_its_first_images_whole(vision, renderer):
    class Many(Env):
        async def step(self, action):
            return StepResult([BIG, BIG_TOO, "text"], done=action.content == "end")

    budget = vision.count(BIG) + 60
    t, engine = await play(renderer, ["one", "end"], Many(), observation_tokens=budget)
    assert engine.images[1] == [BIG]
    assert t.info["observation_tokens_cut"] >= vision.count(BIG_TOO)
    assert "[image left out]" in renderer.decode(t.tokens)


class Drifting(ScriptedEngine):
    """Reads the prompt as a server does that decodes and tokenises it again: as another number of tokens."""

    read = 7

    async def generate(self, *args, **kwargs):
        found = await super().generate(*args, **kwargs)
        return Generation(found.tokens, found.log_probs, found.finish_reason, meta={"prompt_tokens": self.read})


async def test_an_engine_that_reads_images_otherwise_stops_the_episode(renderer):
    engine = Drifting(SCRIPT, renderer)
    t = await run_episode(Screens(), Task(), engine=engine, renderer=renderer)
    assert t.stop is StopReason.FAILED
    assert "read 7 prompt tokens" in t.failure.error
    assert "legacy_load_mm_data" in t.failure.error


async def test_an_engine_that_samples_a_pad_stops_the_episode(vision, renderer):
    said = Generation((vision.pad,), (-1.0,), "length")
    t, _ = await play(renderer, [said])
    assert t.stop is StopReason.FAILED
    assert "logit_bias" in t.failure.error


async def test_pads_are_forbidden_to_the_policy(vision, renderer):
    asked = []

    class Asked(ScriptedEngine):
        async def generate(self, input_ids, params, **more):
            asked.append(params)
            return await super().generate(input_ids, params, **more)

    options = EpisodeOptions(sampling_params={"logit_bias": {"5": 1.0}})
    await run_episode(Screens(), Task(), engine=Asked(SCRIPT, renderer), renderer=renderer, options=options)
    assert all(
        params["logit_bias"] == {"5": 1.0, **dict.fromkeys(map(str, vision.forbidden), -1e4)} for params in asked
    )


async def test_an_engine_without_images_is_named(renderer):
    class Blind(ScriptedEngine):
        takes_images = False

    with pytest.raises(ConfigError, match="Blind takes no images"):
        await run_episode(Screens(), Task(), engine=Blind(SCRIPT, renderer), renderer=renderer)


async def test_a_model_of_text_refuses_images_by_name(renderer):
    plain = load_renderer(load_tokenizer("tiny"))
    t = await run_episode(Screens(), Task(), engine=ScriptedEngine(SCRIPT, plain), renderer=plain)
    assert t.stop is StopReason.FAILED
    assert "not known to read images" in t.failure.error


@pytest.mark.parametrize(
    "bound", [{"image_pixels": 120 * 90 + 200 * 70}, {"image_bytes": len(A.data) + len(B.data) + 9}]
)
async def test_too_many_pixels_or_bytes_end_an_episode(renderer, bound):
    t, engine = await play(renderer, **bound)
    assert t.stop is StopReason.MAX_IMAGES
    assert t.truncated
    assert t.reward == 1.0, "it is scored"
    assert engine.images[-1] == [A, B]
    assert t.messages[-1]["content"][0]["type"] == "image", "what it would have seen is kept"


async def test_an_equal_image_counts_once(renderer):
    class Again(Env):
        async def step(self, action):
            return StepResult([A], done=action.content == "end")

    t, _ = await play(renderer, ["one", "two", "three", "end"], Again(), image_pixels=120 * 90)
    assert t.stop is StopReason.DONE
    assert len({id(one.image.uri) for one in t.segment.media}) == 1, "its file is kept once"


async def test_the_text_of_a_pad_in_a_message_is_refused_or_becomes_text(vision, renderer):
    mark = renderer.decode([vision.pad])
    with pytest.raises(TemplateError, match="as_text"):
        renderer.prompt([{"role": "user", "content": [f"see {mark}", A]}])
    rendered = renderer.as_text().prompt([{"role": "user", "content": [f"see {mark}", A]}])
    assert list(rendered.tokens).count(vision.pad) == vision.count(A)
    with pytest.raises(TemplateError):
        renderer.prompt(Raw(f"see {mark}"))


def test_the_certificate_names_what_the_template_carries(renderer):
    assert renderer.certificate.capabilities["images"] is True
    assert renderer.certificate.capabilities["tool_images"] is True


def test_a_template_that_prints_a_tools_parts_cannot_carry_its_images():
    tokenizer = load_tokenizer(str(tiny_vlm.folder("qwen2_5_vl")))
    tokenizer.chat_template = tiny_vlm.TEMPLATE.replace(
        "<tool_response>\\n{{ shown(m.content) }}".replace("\\n", "\n"), "<tool_response>\n{{ m.content }}"
    )
    renderer = load_renderer(tokenizer, vision=load_vision(str(tiny_vlm.folder("qwen2_5_vl"))))
    assert renderer.certificate.capabilities["images"] is True
    assert renderer.certificate.capabilities["tool_images"] is False
    result = {"role": "tool", "tool_call_id": "c1", "name": "look", "content": [A.part]}
    with pytest.raises(TemplateError, match="no images of the tool"):
        renderer.prompt([{"role": "user", "content": "hi"}, call("look"), result])


FORMS = [
    {"type": "image_url", "image_url": {"url": A.uri}},
    {"type": "image_url", "image_url": A.uri},
    {"type": "input_image", "image_url": A.uri},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": A.uri.partition(",")[2]}},
    {"type": "image", "data": A.uri.partition(",")[2], "mimeType": "image/png"},
    {"type": "image", "image": A.uri},
    A,
]


@pytest.mark.parametrize("form", FORMS)
def test_every_wire_gives_the_same_image(form):
    assert parts_of(["look", form]) == ["look", A]
    assert normal_content(["look", form]) == [{"type": "text", "text": "look"}, A.part]


BAD = [
    ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "nothing is fetched"),
    ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "nothing is fetched"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,????"}}, "base64"),
    ({"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}, "nothing is fetched"),
    (
        {"type": "image", "data": base64.b64encode(b"GIF89a" + b"0" * 30).decode(), "mimeType": "image/gif"},
        "PNG or JPEG",
    ),
    ({"type": "image", "data": A.uri.partition(",")[2], "mimeType": "image/jpeg"}, "data URI names"),
    ({"type": "image", "data": base64.b64encode(A.data[:20]).decode(), "mimeType": "image/png"}, "damaged"),
    ({"type": "input_image", "file_id": "file-1"}, "nothing is fetched"),
    ({"type": "video", "video": "x"}, "not 'video'"),
]


@pytest.mark.parametrize(("form", "why"), BAD)
def test_what_cannot_be_an_image_is_refused_with_the_reason(form, why):
    with pytest.raises(ValueError, match=why):
        parts_of([form])


async def test_a_tools_image_that_cannot_be_read_is_a_bug_of_the_env(renderer):
    class Broken(Screens):
        @tool
        async def screenshot(self) -> object:
            """The page."""
            return [{"type": "image", "data": "Zm9v", "mimeType": "image/png"}]

    t, _ = await play(renderer, env=Broken())
    assert t.stop is StopReason.FAILED
    assert t.failure.kind == "bug"


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(1, 1), (33, 500), (1920, 1080)])
def test_the_size_is_that_of_the_header(kind, size):
    image = picture(*size, kind=kind)
    assert (image.width, image.height) == size


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_a_pil_image_of_any_mode_becomes_rgb(mode):
    made = Image.from_pil(Pillow.new(mode, (40, 30)))
    with Pillow.open(io.BytesIO(made.data)) as opened:
        assert opened.mode == "RGB"


def test_other_families_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "vision_config": {}}))
    assert load_vision(str(tmp_path)) is None
    with pytest.raises(ConfigError, match="gemma3"):
        Vision(tmp_path)


async def test_many_episodes_at_once(vision, renderer):
    played = await asyncio.gather(*(play(renderer) for _ in range(20)))
    assert len({tuple(t.tokens) for t, _ in played}) == 1


async def test_after_a_summary_only_the_images_of_the_first_prompt_remain(vision, renderer):
    """They count once for the limits, and every later request has them alone."""

    class Summarized(Screens):
        def ask_summary(self, trajectory):
            return "" if trajectory.summaries else "Sum up."

    script = [*SCRIPT[:1], "I saw it.", *SCRIPT[1:]]
    pixels = 2 * sum(image.width * image.height for image in (A, B, C))
    plain, _ = await play(renderer)
    limits = {"compact_at": plain.prompt_length + 1, "image_pixels": pixels}
    t, engine = await play(renderer, script, Summarized(), **limits)
    assert t.failure is None, t.failure
    t.verify()
    assert (t.summaries, t.stop) == (1, StopReason.DONE)
    assert engine.images[1] == [A, B], "the summary's own request"
    assert engine.images[2] == [A]
    assert [image.image for image in t.segments[1].media][:1] == [A]
    data = json.loads(json.dumps(t.to_json()))
    assert [len(s.media) for s in Trajectory.from_json(data).segments] == [len(s.media) for s in t.segments]
