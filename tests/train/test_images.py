"""Rows with images in the learner: padded batches equal single rows, and what is trained is what was sampled."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
import shutil
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

torch = pytest.importorskip("torch", reason="the trainer needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

from PIL import Image as Pillow  # noqa: E402

from agentrl import (  # noqa: E402
    ConfigError,
    Env,
    Image,
    StepResult,
    Task,
    Trajectory,
    TurnOptions,
    load_renderer,
    run_episode,
)
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.episode.options import EpisodeOptions  # noqa: E402
from agentrl.models import load_model, load_tokenizer, merge_adapter, save_model  # noqa: E402
from agentrl.models.vision import Vision, load_vision, vision_of  # noqa: E402
from agentrl.train import images as train_images  # noqa: E402
from agentrl.train import log_probs  # noqa: E402
from agentrl.train.batch import Row, episode_rows, micro_batches  # noqa: E402
from agentrl.train.config import LoRAConfig, TrainConfig  # noqa: E402
from agentrl.train.learner import Learner  # noqa: E402
from agentrl.train.lora import attach  # noqa: E402
from agentrl.train.teacher import LoadedTeacher, ServedTeacher, open_teacher  # noqa: E402
from agentrl.train.trainer import Trainer  # noqa: E402
from agentrl.train.warm_start import Demonstration, weighted_rows  # noqa: E402
from agentrl.types import Limits, RenderedImage  # noqa: E402
from tests.doubles import tiny_vlm  # noqa: E402


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


async def play(parts: Parts, model) -> list[Trajectory]:
    """Episodes with no, one and two images, played by LocalEngine."""
    options = EpisodeOptions(limits=Limits(max_tokens_per_turn=100), sampling_params={"sampling_seed": 5})
    async with LocalEngine(model, parts.tokenizer, vision=parts.vision) as engine:
        played = [
            await run_episode(
                Shown(), Task(metadata={"images": n}), engine=engine, renderer=parts.renderer, options=options
            )
            for n in range(3)
        ]
    assert all(t.failure is None for t in played), played
    assert [len(t.segment.images) for t in played] == [0, 1, 2]
    return played


def rows_of(played: list[Trajectory]) -> list[Row]:
    return [row for t in played for row in episode_rows(t, [1.0, -0.5, 0.7][: len(t.turns)])]


@pytest.fixture(scope="module")
def episodes(parts) -> list[Trajectory]:
    return asyncio.run(play(parts, parts.model))


@pytest.fixture(scope="module")
def rows(episodes) -> list[Row]:
    return rows_of(episodes)


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
    logits = torch.randn(4, 1028)
    logits[:, forbidden] += 20
    found = log_probs.token_log_probs(logits, torch.arange(4), 0.5, batch.forbidden)
    left = [token for token in range(1028) if token not in forbidden]
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


# An adapter


def adapted(parts, **changes):
    pytest.importorskip("peft", reason="LoRA needs the extra `lora`")
    return attach(copy.deepcopy(parts.model), LoRAConfig(**{"rank": 4, **changes}), base="somewhere", seed=0)


def learner_of(parts, model) -> Learner:
    given = {
        "env": "x:Y",
        "out": "unused",
        "model": parts.name,
        "learning_rate": 1e-2,
        "lora": {"rank": 4},
        "minibatches": 1,
    }
    return Learner(model, TrainConfig.model_validate(given), parts.vision)


@pytest.mark.thorough
def test_an_adapter_is_on_the_language_side_and_trains_what_it_sampled(parts, rows):
    model = adapted(parts)
    wrapped = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    assert len(wrapped) == 7 * model.config.get_text_config().num_hidden_layers
    assert all("language_model" in name and "visual" not in name for name in wrapped)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    learner = learner_of(parts, model)
    first = learner.learn(rows, step=1, normaliser=10.0)
    assert first.numerics.max < 2e-5, "a new adapter changes nothing"
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if ".lora_B." in name}

    again = rows_of(asyncio.run(play(parts, model)))
    assert learner.learn(again, step=2, normaliser=10.0).numerics.max < 2e-5, "engine and learner read the same adapter"
    assert [list(row.log_probs) for row in again] != [list(row.log_probs) for row in rows]


def test_an_adapters_folder_has_the_image_side_of_its_base_and_can_be_merged(parts, tmp_path):
    model = adapted(parts)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.05)
    save_model(parts.model, parts.tokenizer, tmp_path / "base", parts.vision)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    save_model(model, parts.tokenizer, tmp_path / "adapter", parts.vision)
    again = load_model(str(tmp_path / "adapter"))
    vision = vision_of(again, str(tmp_path / "adapter"))
    assert vision is not None
    assert vision.reads_as(parts.vision)
    inputs = by_itself(parts, [5, 6, *[parts.vision.pad] * parts.vision.count(A), 7, 8], [A])
    with torch.no_grad():
        expected, plain = model(**inputs).logits, parts.model(**inputs).logits
        assert torch.equal(again(**inputs).logits, expected)
        assert torch.allclose(merge_adapter(again)(**inputs).logits, expected, atol=1e-4)
    assert not torch.allclose(expected, plain, atol=1e-2)


def test_layers_of_the_image_side_are_not_adapted(parts):
    with pytest.raises(ConfigError, match=r"lora\.targets: "):
        adapted(parts, targets=["qkv"])


def by_itself(parts, tokens, images):
    """Arguments for one sequence: the model computes its own positions."""
    ids = torch.tensor([list(tokens)])
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == parts.vision.pad).int(),
        **(parts.vision.tensors(images, "float32") if images else {}),
    }


# A teacher


@pytest.fixture(scope="module")
def teacher(parts, tmp_path_factory):
    """A folder of the student's architecture with other weights."""
    model, folder = copy.deepcopy(parts.model), tmp_path_factory.mktemp("teacher") / "model"
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_model(model, parts.tokenizer, folder, parts.vision)
    return folder


@torch.no_grad()
def scored(parts, model, trajectory, *, pads: bool) -> list[float]:
    """A teacher's log-probs of the sampled tokens, without our batches; with or without the pads in the softmax."""
    logits = model(**by_itself(parts, trajectory.tokens, trajectory.segment.images)).logits[0]
    if not pads:
        logits[:, list(parts.vision.forbidden)] = -torch.inf
    log_probs = logits.log_softmax(-1)
    [row] = episode_rows(trajectory, [0.0] * len(trajectory.turns))
    return [float(log_probs[at - 1, row.tokens[at]]) for at in row.positions]


def config_of(parts, teacher, **changes) -> TrainConfig:
    given = {"env": "x:Y", "out": "unused", "model": parts.name, "teacher": {"model": str(teacher)}, **changes}
    return TrainConfig.model_validate(given)


async def opened(parts, teacher):
    return await open_teacher(config_of(parts, teacher), parts.tokenizer, torch.device("cpu"), parts.vision)


async def test_a_loaded_teacher_reads_the_images_that_the_student_saw(parts, episodes, teacher):
    found, model = await opened(parts, teacher), load_model(str(teacher))
    assert isinstance(found, LoadedTeacher)
    found.read(episodes)
    for trajectory in episodes:
        of_teacher = list(found.scores[trajectory].values())
        assert of_teacher == pytest.approx(scored(parts, model, trajectory, pads=False), abs=2e-5)


async def test_a_teacher_that_reads_images_otherwise_is_refused(parts, teacher, tmp_path):
    odd, blind = tmp_path / "odd", tmp_path / "blind"
    for folder in (odd, blind):
        shutil.copytree(teacher, folder)
    file = odd / "preprocessor_config.json"
    read = json.loads(file.read_text())
    file.write_text(json.dumps({**read, "size": {**read["size"], "longest_edge": read["size"]["longest_edge"] // 2}}))
    (blind / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"teacher .*odd reads an image in other tokens than the student: take one"):
        await opened(parts, odd)
    with pytest.raises(ConfigError, match=r"teacher .*blind reads text only, and the student reads images: take one"):
        await opened(parts, blind)


@asynccontextmanager
async def serving(parts, folder, *, expands: bool = True):
    """A server with SGLang's /generate, which expands pads and shows others in their places."""
    model, asked = load_model(str(folder)), []

    async def generate(request):
        body = await request.json()
        asked.append(body)
        ids, images = body["input_ids"], [Image(uri) for uri in body.get("image_data", ())]
        if images and expands:
            ids, _ = parts.vision.place(ids, images)
        with torch.no_grad():
            inputs = by_itself(parts, ids, images) if expands else {"input_ids": torch.tensor([ids])}
            log_probs = model(**inputs).logits.log_softmax(-1)[0] if expands or not images else torch.zeros(99, 1028)
        known = log_probs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
        texts = map(parts.tokenizer.decode, ids) if body.get("return_text_in_logprobs") else [None] * len(ids)
        entries = [list(entry) for entry in zip([None, *known], ids, texts, strict=True)]
        for entry in entries:
            if entry[1] == parts.vision.pad and images:
                entry[:2] = None, 0
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": entries}})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/generate", generate)
    async with TestServer(app) as server:
        yield asked, str(server.make_url("/"))


async def test_a_served_teacher_is_given_one_pad_and_the_image(parts, episodes, teacher):
    async with serving(parts, teacher) as (asked, url):
        found = await opened(parts, url)
        assert isinstance(found, ServedTeacher)
        asked.clear()
        await found.ask(episodes)
        await found.close()
    assert [t.failure for t in episodes] == [None] * 3
    model = load_model(str(teacher))
    for trajectory in episodes:
        of_server = list(found.scores[trajectory].values())
        assert of_server == pytest.approx(scored(parts, model, trajectory, pads=True), abs=2e-5)
        assert of_server == pytest.approx(scored(parts, model, trajectory, pads=False), abs=0.05), "the pads' share"
    assert {body["input_ids"].count(parts.vision.pad) == len(body.get("image_data", ())) for body in asked} == {True}
    assert sorted(len(body.get("image_data", ())) for body in asked) == [0, 1, 2]


async def test_a_server_of_text_is_refused_as_a_teacher_at_the_start(parts, teacher):
    async with serving(parts, teacher, expands=False) as (_, url):
        with pytest.raises(
            ConfigError, match=r"cannot score images: .*read 3 tokens, and the student \d+: .*take a teacher"
        ):
            await opened(parts, url)


@pytest.mark.thorough
async def test_a_run_with_workers_an_adapter_and_a_teacher(tmp_path):
    """Of tiny-vl: the weights of the base are random, and kept in the run."""
    pytest.importorskip("peft", reason="LoRA needs the extra `lora`")
    given = {
        "env": "examples/colours/env.py:Colours",
        "model": "tiny-vl",
        "out": tmp_path / "run",
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 2,
        "eval_tasks": 2,
        "eval_every": 0,
        "limits": {"max_tokens_per_turn": 4},
        "workers": 1,
        "lora": {"rank": 4},
        "teacher": {"model": "tiny-vl", "beside_reward": True},
        "learning_rate": 1e-2,
    }
    async with Trainer(TrainConfig.make(**given), console=Console(quiet=True)) as trainer:
        await trainer.run()
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["failed_episodes"] for step in steps] == [0, 0]
    assert max(step["logprob_diff_max"] for step in steps) < 2e-5, "engine and learner agree on rows with images"
    assert steps[0]["teacher_kl"] == pytest.approx(0.0, abs=1e-5), "the student is the teacher"
    assert abs(steps[1]["teacher_kl"]) > 1e-5, "the adapter has changed it"
    folder = str(tmp_path / "run" / "model")
    assert load_vision(folder) is not None
    assert hasattr(load_model(folder), "peft_config")
