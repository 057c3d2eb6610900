"""The images of a task set, and what is printed about missing ones."""

from agentrl import Task
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

    monkeypatch.setattr("agentrl_sandbox.docker.pulling.missing_images", missing)
    lines = await images.missing_lines("docker:one,two,three", ["a", "b", "c", "d"])
    assert [line.partition(",")[0] for line in lines] == [
        "2 of 4 images are missing on host one (a",
        "4 of 4 images are missing on host two (a",
    ]
    assert "(a, b, c, ...)" in lines[1]
    assert await images.missing_lines("bubblewrap", ["a"]) == []
    assert await images.missing_lines("docker", []) == []
