"""What one episode changes of its task, its configuration, its tools and its calls, no other episode sees."""

import json
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from pydantic import BaseModel

from agentrl import Env, EnvFactory, InfraError, Limits, StepResult, Task, tool
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env.env import own_task
from agentrl.episode.options import EpisodeHooks, EpisodeOptions
from agentrl.episode.resume import resume_episode
from agentrl.episode.run import run_episode
from agentrl.episode.state import Parked
from agentrl.errors import ConfigError
from agentrl.rollout import Rollout, TaskStream, run_groups
from agentrl.testing import call, rollout

CLOSE = Limits(turns=6)


class Notes(Env):
    """Counts its questions in the metadata of the task."""

    @tool
    async def ask(self, words: list[str]) -> str:
        """Ask with words."""
        self.task.metadata.setdefault("asked", []).append(words[0])
        words.clear()
        return f"question {len(self.task.metadata['asked'])}"

    async def score(self, trajectory):
        return float(trajectory.task.metadata["asked"] == ["a"])


class Again(Notes):
    deterministic = True


class Budget(BaseModel):
    left: list[int] = [1]


class Frugal(Notes):
    config: Budget

    async def reset(self, task):
        self.config.left.pop()
        return task.prompt


class Tools(Notes):
    def tools(self):
        specs = super().tools()
        specs[0]["function"]["description"] += "!"
        return specs


class FailsOnce(Notes):
    failed = False

    async def reset(self, task):
        task.metadata["asked"] = [*task.metadata.get("asked", ()), *("x" if not type(self).failed else "")]
        if not type(self).failed:
            type(self).failed = True
            raise InfraError("the first time")
        return task.prompt


def asks():
    yield call("ask", words=["a"])
    yield "that is all"


class Engine:
    """Plays the same turns in each episode."""

    def __init__(self, renderer):
        self.renderer, self.of = renderer, {}

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        own = self.of.setdefault(session_id, ScriptedEngine(asks(), self.renderer))
        return await own.generate(input_ids, sampling_params, session_id=session_id, rid=rid)

    async def abort(self, rid=None): ...

    async def context_length(self):
        return 4000

    async def close(self): ...


@pytest.mark.parametrize("env", [Notes, Frugal, Tools, FailsOnce])
async def test_members_of_a_group_the_retry_and_the_next_epoch_begin_alike(renderer, env):
    tasks = [Task(prompt="Hi", id="1", metadata={"kind": "x"}), Task(prompt="Hi", id="2")]
    before = json.dumps([dict(task.metadata) for task in tasks])
    async with EnvFactory(env) as envs:
        parts = Rollout(envs=envs, engine=Engine(renderer), renderer=renderer, options=EpisodeOptions(limits=CLOSE))
        epochs = [await run_groups(parts, tasks, 4, name=name) for name in ("one", "two")]
    assert {t.reward for groups in epochs for group in groups for t in group} == {1.0}
    assert len({json.dumps(t.tools) for groups in epochs for group in groups for t in group}) == 1
    assert json.dumps([dict(task.metadata) for task in tasks]) == before


async def test_the_record_keeps_the_call_that_was_made(renderer):
    class Pops(Notes):
        async def exec_tool(self, call):
            return call.arguments.pop("words").pop()

    trajectory = await rollout(
        Pops(), Task(prompt="Hi"), [call("ask", words=["a"]), "done"], renderer=renderer, reward=one
    )
    assert trajectory.actions[0].calls[0].arguments == {"words": ["a"]}
    assert trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] == {"words": ["a"]}


class Keeps(Notes):
    """Changes what its hooks returned, after they returned it."""

    def tools(self):
        self.offered = super().tools()
        return self.offered

    async def step(self, action):
        self.offered[0]["function"]["description"] = "changed"
        calls = [call for call in action.calls if call.error is None]
        self.said = [{"role": "tool", "tool_call_id": call.id, "name": "ask", "content": [call.id]} for call in calls]
        return StepResult(self.said or "so", info={f"said to {len(calls)}": self.said}, done=not action.calls)

    async def score(self, trajectory):
        return 1.0


@pytest.mark.parametrize("unread", ["", '<tool_call>\n{"name": "ask", "arg\n</tool_call>'])
async def test_what_hooks_returned_can_change_no_record(renderer, unread):
    env = Keeps()

    def player():
        yield '<tool_call>\n{"name": "ask", "arguments": {"words": ["a"]}}\n</tool_call>\n' + unread
        env.said[0]["content"].append("changed")
        env.said.append({"role": "tool", "content": "changed"})
        yield "done"

    trajectory = await rollout(env, Task(prompt="Hi"), player(), renderer=renderer)
    assert trajectory.stop == "done", trajectory.failure
    assert bool(trajectory.turns[0].bad_call) == bool(unread)
    assert "changed" not in json.dumps(trajectory.to_json())


def one(trajectory):
    return 1.0


async def test_an_episode_is_replayed_on_the_task_as_it_was_given(renderer):
    parked, turns = list[Parked](), []

    async def park(one):
        parked.append(one)

    given = {"engine": Engine(renderer), "renderer": renderer, "options": EpisodeOptions(limits=CLOSE)}
    hooks = EpisodeHooks(aborted=lambda: bool(turns), park=park, on_turn=turns.append)
    await run_episode(Again(), Task(prompt="Hi"), hooks=hooks, session_id="s", **given)
    trajectory = await resume_episode(parked[0], Again(), **given)
    assert trajectory.reward == 1.0
    assert trajectory.task.metadata == {"asked": ["a"]}


def test_members_of_a_group_without_a_seed_share_one():
    named, again = own_task(Task(id="a", seed=None)), own_task(Task(id="a", seed=None))
    assert named.seed == again.seed is not None
    assert own_task(Task(id="b", seed=None)).seed != named.seed
    assert own_task(Task(prompt="x", seed=None)).seed != own_task(Task(prompt="y", seed=None)).seed
    assert own_task(Task(prompt="x", seed=0)).seed == 0


async def test_an_env_without_a_seed_has_one_world_for_a_group(renderer):
    class World(Env):
        async def reset(self, task):
            assert task.seed is not None
            return f"{self.rng.random()}"

        async def score(self, trajectory):
            return 1.0

    task = Task(prompt="x", seed=None)
    first = [(await rollout(World(), task, ["done"], renderer=renderer)).messages[0] for _ in range(3)]
    assert first[0] == first[1] == first[2]


def test_the_digest_of_the_data_is_taken_once_of_what_was_given():
    tasks = [Task(prompt="x", id=str(n), metadata={"seen": []}) for n in range(6)]
    stream = TaskStream(tasks, seed=0)
    for task in stream.take(6):
        task.metadata["seen"].append(1)
    state = stream.state_dict()
    TaskStream([replace(task, metadata={"seen": []}) for task in tasks], seed=0).load_state_dict(state)


def test_a_step_does_not_hash_the_data_again(monkeypatch):
    from agentrl.rollout.data import stream as module

    stream = TaskStream([Task(prompt="x", id=str(n)) for n in range(3)], seed=0)
    with suppress(AttributeError):
        monkeypatch.delattr(module.hashlib, "sha256")
        assert stream.state_dict()["rows"]
        return
    pytest.fail("the data were hashed")


def test_a_task_that_cannot_be_copied_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"task 'a' cannot be copied .*put only JSON"):
        own_task(Task(id="a", metadata={"made": (n for n in range(3))}))
    assert own_task(Task(metadata={"random": Random(0)})).metadata["random"].random() == Random(0).random()


def test_what_a_configuration_caches_is_shared():
    from functools import cached_property

    class Corpus(BaseModel):
        names: list[str] = ["a"]

        @cached_property
        def index(self):
            return object()

    class Search(Notes):
        config: Corpus

    envs = EnvFactory(Search)
    index = envs.config.index
    one, two = envs.make(), envs.make()
    assert one.config.index is index
    one.config.names.append("b")
    assert two.config.names == envs.config.names == ["a"]
