"""IFBench's instructions, by its own checkers."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from agentrl import rewards
from agentrl.errors import ConfigError
from agentrl.rewards.workers import GraderError, ProcessPool
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Task
from tests.rewards.others import absent

WORDS = {"instruction_id_list": ["count:word_count_range"], "kwargs": [{"min_words": 3, "max_words": 8, "n": None}]}
BOTH = {
    "instruction_id_list": [*WORDS["instruction_id_list"], "format:no_whitespace"],
    "kwargs": [*WORDS["kwargs"], None],
}

REGISTRY = """
class Checker:
    def __init__(self, name):
        self.name, self.arguments = name, {}

    def build_description(self, **arguments):
        self.arguments |= arguments

    def get_instruction_args(self):
        return {"prompt": ""} if self.name == "repeat" else None

    def check_following(self, answer):
        if self.name == "repeat":
            return answer.startswith(self.arguments["prompt"])
        return self.arguments["least"] <= len(answer.split())


INSTRUCTION_DICT = {"least": Checker, "repeat": Checker}
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of the same form, in place of IFBench. The processes that grade are new."""
    (tmp_path / "ifbench").mkdir()
    (tmp_path / "ifbench" / "__init__.py").touch()
    (tmp_path / "ifbench" / "instructions_registry.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(tmp_path)
    yield from _new_pool(monkeypatch)


def _new_pool(monkeypatch):
    pool = ProcessPool(1)
    monkeypatch.setattr("agentrl.rewards.instructions.shared", lambda: pool)
    yield pool
    pool.close()


async def graded(text, name="ifbench", prompt="", **metadata):
    reward = await getattr(rewards, name).grade(ModelOutput.of_turns([text], prompt=prompt, metadata=metadata))
    return reward.value, reward.parts["followed"]


@pytest.mark.thorough
async def test_all_instructions_have_to_be_followed(library):
    two = {"instruction_id_list": ["least", "repeat"], "kwargs": [{"least": 2, "none": None}, {}]}
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "Say"}]
    for text, right in (("Say it", (1.0, 1.0)), ("Tell it", (0.0, 0.5)), ("Do", (0.0, 0.0)), ("<think>Say it", (0, 0))):
        assert await graded(text, prompt=asked, **two) == right
        assert await graded(text, prompt_text="Say", **two) == right
    assert await graded("Tell it", **{**two, "prompt_text": "Tell"}) == (1.0, 1.0)
    assert await graded("one two", instruction_id_list=["least"], kwargs={"least": 2}) == (1.0, 1.0)
    boxed = {"name": "boxed_ifbench", "instruction_id_list": ["least"], "kwargs": {"least": 2}}
    assert [await graded(text, **boxed) for text in (r"\boxed{a b}", r"a b \boxed{c}", "a b")] == [
        (1, 1),
        (0, 0),
        (0, 0),
    ]
    with pytest.raises(GraderError, match="IFBench has no instruction 'most'; correct instruction_id_list, or update"):
        await graded("x", instruction_id_list=["most"])


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, "metadata.instruction_id_list, which is None"),
        ({"instruction_id_list": []}, "give a list of IFBench's names"),
        ({"instruction_id_list": "count:words"}, "give a list of IFBench's names"),
        ({"instruction_id_list": ["a", "b"], "kwargs": [{}]}, "one object for each of the 2 instructions"),
        ({"instruction_id_list": ["a"], "kwargs": "{}"}, "one object for each of the 1 instructions"),
    ],
)
def test_metadata_that_name_no_instruction(metadata, says):
    with pytest.raises(ConfigError, match=says):
        rewards.ifbench.check_task(Task(prompt="q", metadata=metadata))


async def test_without_the_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs AllenAI's library: pip install git\+https://github.com/allenai/IFBench"
    ):
        await graded("x", **WORDS)
    with pytest.raises(ConfigError, match="needs AllenAI's library"):
        rewards.ifbench.check_task(Task(prompt="q", metadata=WORDS))


@pytest.mark.thorough
async def test_ifbenchs_own_checkers(monkeypatch):
    """With IFBench installed, or at IFBENCH_SRC: a clone, with its dependencies."""
    if folder := os.environ.get("IFBENCH_SRC"):
        monkeypatch.setattr(sys, "path", [folder, *sys.path])
    if importlib.util.find_spec("ifbench") is None:
        absent("IFBench is not installed, and IFBENCH_SRC does not name its source", "ifbench")
    for _ in _new_pool(monkeypatch):
        assert await graded("one two three four", **WORDS) == (1.0, 1.0)
        assert await graded("one two", **WORDS) == (0.0, 0.0)
        assert await graded("one two three four", **BOTH) == (0.0, 0.5)
