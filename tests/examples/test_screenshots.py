"""examples/screenshots: pages and a chart that a model sees, played by scripts and by a tiny model's engine."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from PIL import Image as Pillow
from typer.testing import CliRunner

from agentrl import EnvFactory, Image, StopReason, load_renderer, run_episode
from agentrl._util.loading import load_object
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.rollout.data.tasks import own_tasks
from agentrl.slime.config import SlimeConfig
from agentrl.testing import call, rollout
from tests.doubles import tiny_vlm

HERE = Path(__file__).parents[2] / "examples" / "screenshots"
ENVS = {"Pages": "shopper", "Charts": "reader"}


def player(name):
    return load_object(f"{HERE}/players.py:{name}")


def env(name):
    return load_object(f"{HERE}/env.py:{name}")


def tasks(name, split="train"):
    return list(own_tasks(EnvFactory(f"{HERE}/env.py:{name}"), split))


@pytest.fixture(scope="module")
def renderer():
    folder = str(tiny_vlm.folder("qwen3_vl"))
    return load_renderer(load_tokenizer(folder), vision=load_vision(folder))


async def test_a_shopper_sees_pages_until_one_has_the_item(renderer):
    seen = set()
    for task in tasks("Pages")[:8]:
        played = await rollout(env("Pages")(), task, player("shopper")(task), renderer=renderer)
        assert (played.reward, played.stop) == (1.0, StopReason.DONE)
        images = [one.image for one in played.segment.media]
        assert len(images) == len(set(images)) == len(played.turns), "each page is another image"
        seen.add(len(images))
    assert seen == {1, 2, 3}


async def test_a_reader_gets_both_answers_and_a_guess_few(renderer):
    some = tasks("Charts")[:10]
    read = [await rollout(env("Charts")(), task, player("reader")(task), renderer=renderer) for task in some]
    assert {played.reward for played in read} == {1.0}
    assert all(len(played.segment.media) == 1 for played in read)
    guessed = [await rollout(env("Charts")(), task, player("blind")(task), renderer=renderer) for task in some]
    assert sum(played.reward for played in guessed) < 5


async def test_a_page_that_is_not_there_is_named(renderer):
    task = tasks("Pages")[0]
    turns = [call("open_page", number=9), "0"]
    played = await rollout(env("Pages")(), task, turns, renderer=renderer, raise_tool_errors=False)
    assert played.reward == 0.0
    assert "the shop has the pages 1 to 3" in str(played.messages)


def test_a_seed_gives_the_same_pixels_and_the_words_are_drawn():
    pictures = load_object(f"{HERE}/env.py:page"), load_object(f"{HERE}/env.py:prices")
    page, prices = pictures
    assert page(prices(3), 1) == page(prices(3), 1)
    assert len({page(prices(seed), 0) for seed in range(9)}) == 9
    drawn: Image = page(prices(3), 0)
    with Pillow.open(io.BytesIO(drawn.data)) as opened:
        dark = sum(value < 128 for value in opened.convert("L").crop((0, 40, 320, 200)).tobytes())
    assert dark > 300, "the lines of text"


def test_held_out_tasks_are_others():
    for name in ENVS:
        train, held_out = tasks(name), tasks(name, "eval")
        assert len(held_out) == 200
        assert {task.id for task in train}.isdisjoint(task.id for task in held_out)


@pytest.mark.parametrize("name", ENVS)
def test_the_commands_of_the_readme(name, tmp_path):
    folder, out = str(tiny_vlm.folder("qwen3_vl")), tmp_path / "played.jsonl"
    arguments = ["play", f"{HERE}/env.py:{name}", "--player", f"{HERE}/players.py:{ENVS[name]}", "--model", folder]
    done = CliRunner().invoke(app, [*arguments, "--episodes", "3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["show", str(out), "--model", folder])
    assert "[image 320 x 200, " in shown.output


def test_its_configuration_for_slime_is_valid():
    given = yaml.safe_load((HERE / "slime.yaml").read_text())["agentrl"]
    assert SlimeConfig.parse("slime.yaml", given).limits["turns"] == 6


async def test_a_model_of_the_family_plays_it(renderer):
    """Its answers are wrong, and the episode is whole: each turn was sampled behind the images so far."""
    task = tasks("Pages")[0]
    engine = ScriptedEngine([call("open_page", number=2), call("open_page", number=3), "7"], renderer)
    played = await run_episode(env("Pages")(), task, engine=engine, renderer=renderer)
    assert [len(images) for images in engine.images] == [1, 2, 3]
    assert (played.reward, played.failure) == (0.0, None)
    played.verify()
