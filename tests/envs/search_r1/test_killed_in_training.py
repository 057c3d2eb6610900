"""The retriever goes down and comes back while 128 embedded episodes search: none is lost or misled."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("tantivy", reason="tantivy is not installed")
pytest.importorskip("torch", reason="advantages need torch")

from agentrl import EnvFactory, EpisodeOptions, Limits, Task
from agentrl.engine import ScriptedEngine
from agentrl.rollout import Rollout, run_groups
from agentrl.testing import tiny_renderer
from agentrl.train.credit import assign_advantages
from agentrl_envs.search_r1 import SearchR1
from agentrl_envs.search_r1.retrieval import shown
from agentrl_envs.search_r1.retrieval.building import open_index
from agentrl_envs.search_r1.retrieval.server import bind, running_server

GROUPS, MEMBERS = 16, 8


class Watched(SearchR1):
    """Counts the searches under way and those answered."""

    @classmethod
    def share(cls, config):
        return Watch(super().share(config))


class Watch:
    def __init__(self, retriever):
        self.retriever, self.waiting, self.answered = retriever, 0, 0
        self.condition, self.met = bool, asyncio.Event()

    async def __aenter__(self):
        await self.retriever.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self.retriever.__aexit__(*exc)

    async def search(self, query, topk):
        self.waiting += 1
        self.look()
        try:
            found = await self.retriever.search(query, topk)
            self.answered += 1
            return found
        finally:
            self.waiting -= 1
            self.look()

    def look(self):
        if self.condition():
            self.met.set()

    async def until(self, condition):
        self.condition, self.met = condition, asyncio.Event()
        self.look()
        await self.met.wait()


class Players:
    """Half of a group searches once, the others four times. Then they answer what they read last, odd ones wrongly."""

    def __init__(self, renderer):
        self.renderer = renderer

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        text = self.renderer.decode(input_ids)
        found, (group, member) = text.count("</information>"), map(int, session_id.split("-")[2:4])
        if found < searches(member):
            said = f"<search>{title(group + found)}</search>"
        else:
            read = text.rpartition(" holds ")[2].partition("<")[0]
            said = f"<answer>{'wrong' if member % 2 else read}</answer>"
        return await ScriptedEngine([said], self.renderer).generate(input_ids, sampling_params)

    async def context_length(self):
        return 4096


def searches(member):
    return 1 if member < MEMBERS // 2 else 4


def title(number):
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:03}")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "words.jsonl"
    rows = [{"id": str(n), "contents": f'"{title(n)}"\n{title(n)} holds {title(900 - n)}'} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_index(path)


async def down_and_up(index, timeout, back_when):
    """Play all groups. The server goes down after 150 answers and comes back when `back_when(watch, failed)` holds."""
    renderer, failed, stack = tiny_renderer(), [], AsyncExitStack()
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    await stack.enter_async_context(running_server(index, listening))
    config = {"retriever": f"http://127.0.0.1:{port}", "topk": 1, "timeout": timeout}
    rights = [[title(900 - group), title(900 - group - 3)] for group in range(GROUPS)]
    tasks = [Task(prompt="?", label={"ground_truth": {"target": right}}) for right in rights]

    def note(trajectory):
        if trajectory.failure is not None:
            failed.append(trajectory)
            watch.look()

    async def outage(watch):
        await watch.until(lambda: watch.answered >= 150)
        await stack.aclose()
        await watch.until(lambda: back_when(watch, failed))
        await stack.enter_async_context(running_server(index, bind("127.0.0.1", port)))

    async with stack, EnvFactory(Watched, config) as envs, asyncio.TaskGroup() as group:
        rollout = Rollout(
            envs=envs,
            engine=Players(renderer),
            renderer=renderer,
            options=EpisodeOptions(limits=Limits(turns=5, observation_tokens=500)),
            concurrency=GROUPS * MEMBERS,
        )
        watch = envs.shared
        down = group.create_task(outage(watch))
        groups = await run_groups(rollout, tasks, MEMBERS, on_episode=note)
        await down
    return groups, failed


def check_true(index, group, member, t):
    """Every search was answered by what the index holds, and the reward is the answer's."""
    found = [shown(index.search(title(group + turn), 1)).strip() for turn in range(searches(member))]
    truth = [f"\n\n<information>{passages}</information>\n\n" for passages in found]
    assert [turn.raw for turn in t.turns[:-1]] == truth
    assert t.reward == float(member % 2 == 0)


@pytest.mark.thorough
async def test_with_patience_every_episode_ends_well(index):
    groups, failed = await down_and_up(index, 60, lambda watch, failed: watch.waiting == GROUPS * MEMBERS // 2)
    assert [len(group) for group in groups] == [MEMBERS] * GROUPS
    assert failed == []
    for number, group in enumerate(groups):
        for member, t in enumerate(group):
            check_true(index, number, member, t)


@pytest.mark.thorough
async def test_without_it_those_that_failed_are_counted_masked_and_out_of_the_baseline(index):
    groups, failed = await down_and_up(index, 0.5, lambda watch, failed: len(failed) >= 10)
    played = [(number, member, t) for number, group in enumerate(groups) for member, t in enumerate(group)]
    assert len(played) == GROUPS * MEMBERS
    assert sum(not t.is_valid for _, _, t in played) == len(failed) >= 10
    advantages, _ = assign_advantages(groups, "grpo", "episode")
    for number, member, t in played:
        if t.is_valid:
            check_true(index, number, member, t)
            continue
        assert (t.failure.kind, t.failure.boundary, t.reward) == ("environment", "step", None)
        assert (t.ledger.trained, t.ledger.masked) == (0, {"env_failure": t.ledger.sampled})
        assert set(advantages[number][member]) == {0.0}
    for number, group in enumerate(groups):
        of_valid = [advantages[number][member][0] for member, t in enumerate(group) if t.is_valid]
        assert math.isclose(sum(of_valid), 0.0, abs_tol=1e-6), "the mean is that of the valid episodes alone"
