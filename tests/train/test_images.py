"""Rows with images in the learner: padded batches equal single rows, and what is trained is what was sampled."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

from PIL import Image as Pillow  # noqa: E402

from agentrl import ConfigError, Env, Image, StepResult, Task, TurnOptions, load_renderer, run_episode  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.episode.options import EpisodeOptions  # noqa: E402
from agentrl.models import load_model, load_tokenizer, save_model  # noqa: E402
from agentrl.models.vision import Vision, load_vision, vision_of  # noqa: E402
from agentrl.train import images as train_images  # noqa: E402
from agentrl.train import log_probs  # noqa: E402
from agentrl.train.batch import Row, episode_rows, micro_batches  # noqa: E402
from agentrl.train.config import TrainConfig  # noqa: E402
from agentrl.train.learner import Learner  # noqa: E402
from agentrl.train.warm_start import Demonstration, weighted_rows  # noqa: E402
from agentrl.types import Limits, RenderedImage  # noqa: E402
from tests import tiny_vlm  # noqa: E402


def noise(width: int, height: int, seed: int) -> Image:
    return Image.from_pil(Pillow.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height)))


A, B = noise(120, 90, 0), noise(60, 130, 1)


class Shown(Env):
    """As many images as the task says: one in the prompt, the others after turns."""

    turn_options = TurnOptions(stop=tuple("aeiou"))  # else a random model would never end its turn

    async def reset(self, task):
        self.left = [A, B][: task.metadata["images"]]
        return [{"role": "user", "content": ["Look.", *self.left[:1]]}]

    async def step(self, action):
        self.left = self.left[1:]
        return StepResult([{"role": "user", "content": ["And now?", *self.left[:1]]}], done=not self.left)

    def score(self, trajectory):
        return 1.0


class Parts:
    def __init__(self, name: str) -> None:
        self.name, self.model, self.tokenizer = name, load_model(name), load_tokenizer(name)
        found = vision_of(self.model, name)
        assert found is not None
        self.vision: Vision = found
        self.renderer = load_renderer(self.tokenizer, vision=self.vision)

    def learner(self, **changes) -> Learner:
        config = TrainConfig.model_validate(
            {"env": "x:Y", "out": "unused", "model": self.name, "learning_rate": 1e-3, **changes}
        )
        return Learner(self.model, config, self.vision)


@pytest.fixture(scope="module", params=["tiny-vl", "qwen2_5_vl"])
def parts(request) -> Parts:
    name = request.param
    return Parts(name if name == "tiny-vl" else str(tiny_vlm.folder(name, weights=True)))


@pytest.fixture(scope="module")
def rows(parts) -> list[Row]:
    """Of episodes with no, one and two images, played by LocalEngine."""
    import asyncio

    async def play() -> list[Row]:
        options = EpisodeOptions(limits=Limits(max_tokens_per_turn=100), sampling_params={"sampling_seed": 5})
        async with LocalEngine(parts.model, parts.tokenizer, vision=parts.vision) as engine:
            played = [
                await run_episode(
                    Shown(), Task(metadata={"images": n}), engine=engine, renderer=parts.renderer, options=options
                )
                for n in range(3)
            ]
        assert all(t.failure is None for t in played), played
        assert [len(t.segment.images) for t in played] == [0, 1, 2]
        return [row for t in played for row in episode_rows(t, [1.0, -0.5, 0.7][: len(t.turns)])]

    return asyncio.run(play())


def flat(batches, model) -> dict[int, list[float]]:
    found = {}
    for batch in batches:
        values = batch.model_log_probs(model).tolist()
        for row in batch.rows:
            found[id(row)], values = values[: len(row.positions)], values[len(row.positions) :]
    return found


@torch.no_grad()
def test_rows_of_a_batch_equal_single_rows_and_the_engine(parts, rows):
    learner = parts.learner()
    together = list(learner.micro_batches(rows, 100_000))
    assert len(together) == 1
    assert len(together[0].inputs["image_grid_thw"]) == 3
    batched, alone = flat(together, parts.model), flat(learner.micro_batches(rows, 1), parts.model)
    for row in rows:
        assert batched[id(row)] == pytest.approx(alone[id(row)], abs=1e-5)
        assert batched[id(row)] == pytest.approx(list(row.log_probs), abs=2e-5)


@torch.no_grad()
def test_log_probs_in_pieces_are_the_same(parts, rows, monkeypatch):
    learner = parts.learner()
    whole = flat(learner.micro_batches(rows, 100_000), parts.model)
    monkeypatch.setattr("agentrl.train.batch.PIECE_BYTES", 4000)
    monkeypatch.setattr(log_probs, "PIECE_BYTES", 4000)
    pieces = flat(learner.micro_batches(rows, 100_000), parts.model)
    for row in rows:
        assert pieces[id(row)] == pytest.approx(whole[id(row)], abs=1e-5)


def test_gradients_of_a_batch_are_those_of_single_rows(parts, rows):
    learner = parts.learner()

    def gradients(most: int) -> list:
        for micro in learner.micro_batches(rows, most):
            (micro.weights * micro.model_log_probs(parts.model)).sum().backward()
        found = [parameter.grad.clone() for parameter in learner.parameters if parameter.grad is not None]
        for parameter in learner.parameters:
            parameter.grad = None
        return found

    together, alone = gradients(100_000), gradients(1)
    assert any("visual" in name for name, _ in parts.model.named_parameters())
    assert len(together) == len(learner.parameters), "the image side is trained, too"
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one, other, atol=2e-4, rtol=1e-3)


def test_a_softmax_is_over_tokens_that_may_be_sampled(parts, rows):
    learner = parts.learner()
    [batch] = learner.micro_batches(rows, 100_000)
    forbidden = batch.forbidden.tolist()
    assert forbidden == list(parts.vision.forbidden)
    logits = torch.randn(4, 700)
    logits[:, forbidden] += 20
    found = log_probs.token_log_probs(logits, torch.arange(4), 0.5, batch.forbidden)
    left = [token for token in range(700) if token not in forbidden]
    assert torch.allclose(found, (logits[:, left] / 0.5).log_softmax(1)[range(4), range(4)])


def test_an_image_after_the_last_trained_token_is_not_read(parts):
    tokens = [5, 6, 7, *[parts.vision.pad] * parts.vision.count(A), 8]
    row = Row(tokens, [2], [1.0], media=[RenderedImage(3, 3 + parts.vision.count(A), A)])
    [batch] = micro_batches([row], 100, torch.device("cpu"), images=parts.learner().images)
    assert "pixel_values" not in batch.inputs


def test_one_step_of_each_algorithm_learns(parts, rows):
    for changes in ({}, {"tis_clip": 2.0}, {"algorithm": "gspo"}):
        learner = parts.learner(**changes)
        before = [parameter.detach().clone() for parameter in learner.parameters]
        update = learner.learn(rows, step=1, normaliser=10.0)
        assert math.isfinite(update.loss)
        assert update.numerics.max < 2e-5
        assert any(not torch.equal(x, y) for x, y in zip(before, learner.parameters, strict=True))
        with torch.no_grad():  # other tests use the model
            for x, y in zip(before, learner.parameters, strict=True):
                y.copy_(x)


def test_a_warm_start_predicts_no_pads(parts):
    count = parts.vision.count(A)
    tokens = [5, 6, *[parts.vision.pad] * count, 8, 9]
    media, pads = [RenderedImage(2, 2 + count, A)], frozenset(range(2, 2 + count))
    demonstration = Demonstration(tokens, [0] * (count + 3) + [1], media, pads)
    [row] = weighted_rows([demonstration], context_weight=1.0)
    assert list(row.positions) == [1, count + 2, count + 3]
    assert sum(row.weights) == pytest.approx(2.0)
    loss = parts.learner().imitate([row], [], 1000)
    assert math.isfinite(loss)


@pytest.mark.parametrize("changes", [{"teacher": {"model": "tiny"}}, {"workers": 2}, {"lora": {"rank": 2, "alpha": 4}}])
def test_what_cannot_be_had_with_images_is_refused_by_name(parts, changes):
    with pytest.raises(ConfigError, match=rf"{next(iter(changes))}: .*reads images"):
        parts.learner(**changes)


def test_a_model_that_computes_rows_otherwise_is_refused(parts, monkeypatch):
    def flat_positions(self, rows):
        inputs = kept(self, rows)
        return {**inputs, "position_ids": torch.arange(inputs["position_ids"].shape[2]).expand(3, len(rows), -1)}

    kept = train_images.RowImages.inputs
    monkeypatch.setattr(train_images.RowImages, "inputs", flat_positions)
    with pytest.raises(ConfigError, match="cannot be trained here"):
        parts.learner()


def test_a_saved_model_has_its_image_side(parts, tmp_path):
    save_model(parts.model, parts.tokenizer, tmp_path, parts.vision)
    again = load_model(str(tmp_path))
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), parts.model.parameters(), strict=True))
    found = load_vision(str(tmp_path))
    assert found is not None
    assert (found.count(A), found.pad) == (parts.vision.count(A), parts.vision.pad)
    assert found.forbidden == parts.vision.forbidden
    assert load_tokenizer(str(tmp_path)).chat_template == parts.tokenizer.chat_template
