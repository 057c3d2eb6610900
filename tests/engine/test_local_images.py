"""Images in LocalEngine: batches, kept prefixes and long prompts give what one forward pass of transformers gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")


from agentrl import Image, RequestError  # noqa: E402
from agentrl.engine.local import LocalEngine, batch  # noqa: E402
from agentrl.engine.local import images as local_images  # noqa: E402
from agentrl.errors import ConfigError  # noqa: E402
from agentrl.models import load_model, load_tokenizer, tiny_model  # noqa: E402
from agentrl.models.vision import Vision, load_vision  # noqa: E402
from agentrl.types import RenderedImage  # noqa: E402
from tests.doubles import tiny_vlm  # noqa: E402
from tests.engine.noise import A, B, C, noise  # noqa: E402

SAMPLING: Any = {"max_new_tokens": 8, "temperature": 0.9, "sampling_seed": 3, "ignore_eos": True}


class Model:
    """A model, its parts, and one forward pass over a whole sequence as the truth."""

    def __init__(self, name: str) -> None:
        self.tokenizer, self.model = load_tokenizer(name), load_model(name)
        found = load_vision(name)
        assert found is not None
        self.vision: Vision = found

    def engine(self, **changes: Any) -> LocalEngine:
        return LocalEngine(self.model, self.tokenizer, vision=self.vision, **changes)

    def ids(self, *parts: Any) -> list[int]:
        """Single pads in place of images."""
        return [
            token
            for part in parts
            for token in ([self.vision.pad] if isinstance(part, Image) else self.tokenizer(part)["input_ids"])
        ]

    @torch.no_grad()
    def log_probs(self, ids: list[int], images: list[Image], response: list[int]) -> list[float]:
        """One forward pass, with the positions that the model computes."""
        prompt, _ = self.vision.place(ids, images)
        whole = torch.tensor([[*prompt, *response]])
        more = self.vision.tensors(images, "float32") if images else {}
        logits = self.model(input_ids=whole, mm_token_type_ids=(whole == self.vision.pad).int(), **more).logits[0]
        logits[:, list(self.vision.forbidden)] = -torch.inf
        scores = (logits / SAMPLING["temperature"]).log_softmax(-1)
        return [float(scores[len(prompt) - 1 + i, token]) for i, token in enumerate(response)]

    def worst(self, ids: list[int], images: list[Image], found: Any) -> float:
        truth = self.log_probs(ids, images, list(found.tokens))
        return max(abs(x - y) for x, y in zip(found.log_probs, truth, strict=True))


@pytest.fixture(scope="module", params=["tiny-vl", "qwen2_5_vl", "qwen3_vl"])
def model(request) -> Model:
    name = request.param
    return Model(name if name == "tiny-vl" else str(tiny_vlm.folder(name, weights=True)))


async def ask(engine, ids, images=(), session="", **changes):
    return await engine.generate(ids, {**SAMPLING, **changes}, session_id=session, images=images)


async def test_rows_with_no_one_and_two_images_in_a_batch_are_exact(model):
    prompts = [
        (model.ids("look at ", A, " and at ", B, " and say what "), [A, B]),
        (model.ids("only ", C, " here "), [C]),
        (model.ids("no image at all in this one "), []),
    ]
    async with model.engine() as engine:
        together = await asyncio.gather(*(ask(engine, *prompt) for prompt in prompts))
        alone = [await ask(engine, *prompt) for prompt in prompts]
    for (ids, images), found, single in zip(prompts, together, alone, strict=True):
        assert model.worst(ids, images, found) < 2e-5
        assert list(found.tokens) == list(single.tokens)
        assert found.meta["prompt_tokens"] == len(model.vision.place(ids, images)[0])


async def test_a_turn_reuses_what_is_equal_images_included(model):
    first, images = model.ids("look: ", A, " what is it? "), [A]
    async with model.engine() as engine:
        one = await ask(engine, first, images, "s")
        second = [*first, *one.tokens, *model.ids(" and ", B, "? ")]
        two = await ask(engine, second, [A, B], "s")
        third = [*second, *two.tokens, *model.ids(" so ")]
        three = await ask(engine, third, [A, B], "s")
    assert two.cached_tokens == len(model.vision.place(first, images)[0]) + len(one.tokens) - 1
    assert three.cached_tokens > two.cached_tokens
    assert model.worst(second, [A, B], two) < 2e-5
    assert model.worst(third, [A, B], three) < 2e-5


async def test_another_image_of_the_same_size_is_not_reused(model):
    other = noise(A.width, A.height, 9)
    ids = model.ids("look: ", A, " what is it? ")
    async with model.engine() as engine:
        await ask(engine, ids, [A], "s")
        found = await ask(engine, ids, [other], "s")
    assert found.cached_tokens == len(model.ids("look: "))
    assert model.worst(ids, [other], found) < 2e-5


async def test_a_long_prompt_is_read_in_pieces_that_hold_whole_images(model, monkeypatch):
    monkeypatch.setattr(batch, "_PREFILL_TOKENS", 7)
    ids = model.ids("a few words before ", A, " between ", B, " and ", C, " and after all of them ")
    async with model.engine() as engine:
        found = await ask(engine, ids, [A, B, C])
    assert model.worst(ids, [A, B, C], found) < 2e-5


async def test_pads_are_never_sampled(model):
    ids = model.ids("say ", A, " ")
    head = model.model.get_output_embeddings()
    with torch.no_grad():
        kept = head.weight[list(model.vision.forbidden)].clone()
        head.weight[list(model.vision.forbidden)] *= 50  # such a policy would say little else
    try:
        async with model.engine() as engine:
            bias = {str(token): -1e4 for token in model.vision.forbidden}
            found = await ask(engine, ids, [A], max_new_tokens=100, logit_bias=bias)
        assert set(found.tokens).isdisjoint(model.vision.forbidden)
        assert model.worst(ids, [A], found) < 2e-5
    finally:
        with torch.no_grad():
            head.weight[list(model.vision.forbidden)] = kept


async def test_requests_that_do_not_fit_are_refused_by_name(model):
    ids = model.ids("x ", A, " y")
    async with model.engine(max_context=120) as engine:
        for wrong, images, why in [
            (ids, [], "1 pads, and 0 images"),
            (ids, [A, B], "1 pads, and 2 images"),
            (model.ids("x ", A), [A], "ends with an image's pad"),
            (model.ids("x ", noise(1, 400, 1), " y"), [noise(1, 400, 1)], "aspect ratio"),
            (model.ids("x", *[A] * 12, " y"), [A] * 12, "the context holds 120"),
        ]:
            with pytest.raises(RequestError, match=why):
                await ask(engine, wrong, images)
        with pytest.raises(RequestError, match="but to forbid the tokens of media"):
            await ask(engine, ids, [A], logit_bias={"5": -1e4})
        with pytest.raises(RequestError, match="logit_bias"):
            await ask(engine, ids, [A], logit_bias={str(model.vision.pad): 1.0})


async def test_an_engine_without_vision_refuses_images(model):
    async with LocalEngine(model.model, model.tokenizer) as engine:
        assert not engine.takes_images
        with pytest.raises(RequestError, match="vision="):
            await ask(engine, model.ids("x ", A, " y"), [A])


def test_a_model_of_text_is_refused_by_name():
    with pytest.raises(ConfigError, match="does not read the images of"):
        LocalEngine(tiny_model(), load_tokenizer("tiny"), vision=load_vision("tiny-vl"))


def test_a_context_without_room_for_images_is_refused(model):
    with pytest.raises(ConfigError, match="max_context is 20, too short"):
        model.engine(max_context=20)


def test_positions_that_differ_from_the_models_own_are_found(model, monkeypatch):
    def flat(self, media, length):
        return torch.arange(length).expand(3, -1)

    monkeypatch.setattr(Vision, "positions", flat)
    with pytest.raises(ConfigError, match="standard deviations from a plain forward pass"):
        model.engine()


def test_positions_after_the_prompt_that_ignore_images_are_found(model, monkeypatch):
    def flat(row, start, width):
        columns = torch.arange(start, start + width).expand(3, -1)
        known = columns[:, :0] if row.positions is None else row.positions[:, start : start + width]
        return torch.cat([known, columns[:, known.shape[1] :]], dim=1)

    monkeypatch.setattr(local_images, "_positions", flat)
    ids = model.ids("x ", A, " y ")

    async def worst() -> float:
        async with model.engine() as engine:
            return model.worst(ids, [A], await ask(engine, ids, [A], max_new_tokens=40))

    with pytest.raises(ConfigError, match="standard deviations"):
        asyncio.run(worst())


def test_a_model_that_reads_no_pixels_is_found(model, monkeypatch):
    def blind(images, dtype="bfloat16"):
        tensors = Vision.tensors(model.vision, images, dtype)
        return {**tensors, "pixel_values": torch.zeros_like(tensors["pixel_values"])}

    monkeypatch.setattr(model.vision, "tensors", blind)
    with pytest.raises(ConfigError, match="reads no pixels"):
        model.engine()


@pytest.mark.parametrize(
    ("tokens", "others", "shared"), [(50, [A, B], 50), (50, [A, C], 20), (50, [C, B], 5), (22, [A, B], 20)]
)
def test_equal_tokens_are_shared_up_to_the_first_image_that_differs(tokens, others, shared):
    def placed(images):
        return [RenderedImage(start, start + 10, image) for start, image in zip((5, 20), images, strict=True)]

    assert local_images.common_images(tokens, placed([A, B]), placed(others)) == shared
