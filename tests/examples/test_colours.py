"""The example of images: its pictures, its reward, and a short run of its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the embedded trainer needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

import yaml
from rich.console import Console

from agentrl import EnvFactory, load_renderer, run_episode
from agentrl._util.loading import load_object
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.train import TrainConfig
from agentrl.train.trainer import Trainer

FOLDER = Path(__file__).parents[2] / "examples" / "colours"
ENV = f"{FOLDER / 'env.py'}:Colours"


def tasks(split):
    return list(EnvFactory(ENV, {}).cls.tasks(None, split))


async def test_the_name_alone_is_rewarded():
    vision = load_vision("tiny-vl")
    renderer = load_renderer(load_tokenizer("tiny-vl"), vision=vision)
    task = tasks("eval")[0]
    for said, reward in ((task.label, 1.0), (f"{task.label} or blue", 0.0), ("", 0.0)):
        env = EnvFactory(ENV, {}).cls()
        t = await run_episode(env, task, engine=ScriptedEngine([said], renderer), renderer=renderer)
        assert t.failure is None, t.failure
        assert t.reward == reward
        assert [vision.count(image) for image in t.segment.images] == [4]


@pytest.mark.thorough
def test_no_held_out_picture_is_trained():
    picture = load_object(f"{FOLDER / 'env.py'}:picture")
    shown = [{picture(task).uri for task in tasks(split)[:40]} for split in ("train", "eval")]
    assert [len(each) for each in shown] == [40, 40]
    assert not shown[0] & shown[1]
    assert len({task.label for task in tasks("eval")}) == 6


@pytest.mark.thorough
async def test_a_step_trains_on_pictures_and_saves_a_model_that_sees(tmp_path):
    short = {"steps": 1, "prompts_per_step": 2, "group_size": 2, "eval_tasks": 2, "eval_every": 0, "warm_start": None}
    given = yaml.safe_load((FOLDER / "train.yaml").read_text())
    config = TrainConfig.model_validate({**given, **short, "env": ENV, "out": tmp_path / "run"})
    async with Trainer(config, console=Console(quiet=True)) as trainer:
        await trainer.run()
    [step] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert step["logprob_diff_max"] < 2e-5, "engine and learner agree on rows with images"
    assert load_vision(str(tmp_path / "run" / "model")) is not None
