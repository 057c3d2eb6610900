"""The images of a task set, and what is printed about missing ones."""

import json

from agentrl import EnvFactory, Task
from agentrl.train.config import TrainConfig
from agentrl.train.data import training_tasks
from agentrl_envs.coding import images
from agentrl_envs.coding.problem import OwnSandbox, Problem, Step
from agentrl_sandbox.spec import SandboxSpec


def load(task):
    """A format of this test's own."""
    own = OwnSandbox(("/work",), "grader") if task.metadata.get("apart") else None
    return Problem((Step("", None, own=own),), image=str(task.metadata.get("image", "")))


def task(**metadata):
    return Task(id="x", prompt="", metadata={"format": f"{__file__}:load", **metadata})


def test_each_image_is_named_once_with_those_of_graders():
    tasks = [task(image="b"), task(image="a", apart=True), task(), task(image="b"), Task(id="broken")]
    assert images.images_of(tasks, SandboxSpec(image="own")) == ["b", "a", "grader", "own"]


async def test_missing_ones_are_counted_by_host(monkeypatch):
    async def missing(backend, names):
        return {"one": names[:2], "two": names, "three": []}

    monkeypatch.setattr("agentrl_sandbox.docker.backend.missing_images", missing)
    lines = await images.missing_lines("docker:one,two,three", ["a", "b", "c", "d"])
    assert [line.partition(",")[0] for line in lines] == [
        "2 of 4 images are missing on host one (a",
        "4 of 4 images are missing on host two (a",
    ]
    assert "(a, b, c, ...)" in lines[1]
    assert await images.missing_lines("bubblewrap", ["a"]) == []
    assert await images.missing_lines("docker", []) == []


def test_a_training_run_prints_it_before_it_starts(monkeypatch, tmp_path, caplog):
    async def missing(backend, names):
        return {"box-1": names[1:]}

    monkeypatch.setattr("agentrl_sandbox.docker.backend.missing_images", missing)
    data = tmp_path / "tasks.jsonl"
    rows = [{"id": name, "prompt": name, "metadata": dict(task(image=name).metadata)} for name in "abc"]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    values = {
        "env": "agentrl_envs.coding:CodingEnv",
        "env_config": {"backend": "docker:box-1"},
        "model": "tiny",
        "data": str(data),
        "out": str(tmp_path / "run"),
    }
    config = TrainConfig.parse("the test", values)
    training_tasks(config, EnvFactory(config.env, config.env_config))
    assert "2 of 3 images are missing on host box-1 (b, c)" in caplog.text
