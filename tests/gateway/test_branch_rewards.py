"""Branches of an agent's session: named in a header, each a segment with its own reward."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from agentrl import AgentEnv, BadCallPolicy, Reward, SessionOptions, Task, Trajectory
from agentrl.errors import ConfigError
from agentrl.gateway.session.session import Session
from agentrl.monitor.metrics import RolloutMetrics
from agentrl.rollout.play.groups import score_group
from agentrl.testing import rollout
from agentrl.train.credit import assign_advantages
from tests.gateway.agents import ADD

TASK, ONE = Task(prompt="x"), Reward(1.0)
SAME = [{"role": "user", "content": "What is 6 times 7?"}]


async def ask(endpoint, branch, messages=SAME, **body):
    headers = {"Authorization": f"Bearer {endpoint.key}"} | ({"X-Agentrl-Branch": branch} if branch else {})
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{endpoint.openai}/chat/completions", json={"messages": messages, **body}) as answer,
    ):
        return answer.status, await answer.json()


def agent(work, reward=ONE):
    class Agent(AgentEnv):
        session = SessionOptions(dropped="mask")

        async def run(self, task, endpoint):
            return await work(endpoint)

        def score(self, trajectory):
            return reward(trajectory) if callable(reward) else reward

    return Agent()


async def three(endpoint):
    """Two solvers that ask the same at once, then a main line."""
    await asyncio.gather(ask(endpoint, "solver/1"), ask(endpoint, "solver/2"))
    await ask(endpoint, "", [{"role": "user", "content": "Which one is right?"}])


def scripted(*replies):
    left = list(replies)
    return lambda ids: left.pop(0)


async def test_equal_requests_of_two_branches_are_two_replies():
    t = await rollout(agent(three), TASK, scripted("42", "41", "The first."))
    first, second, last = branches = [segment.branch for segment in t.segments]
    assert ({first, second}, last) == ({"solver/1", "solver/2"}, "")  # whichever was read first
    assert (t.branches, t.answer) == ([first, second], "The first.")
    assert (t.info["agent"]["replayed"], t.info["agent"]["dropped"]) == (0, 0)
    assert all(segment.ledger.trained == segment.ledger.sampled > 0 for segment in t.segments)
    read = Trajectory.from_json(t.to_json())
    assert read.to_json() == t.to_json()
    assert [segment.branch for segment in read.segments] == branches


async def test_one_branch_that_asks_again_drops_its_own_reply_only():
    async def work(endpoint):
        for branch in ("solver/1", "solver/2", "solver/2"):
            await ask(endpoint, branch)

    t = await rollout(agent(work), TASK, scripted("42", "41", "40"))
    assert [(s.branch, s.ledger.trained > 0) for s in t.segments if s.branch == "solver/1"] == [("solver/1", True)]
    assert t.info["agent"]["dropped"] == 1


@pytest.mark.parametrize("worker", ["worker", ""])
async def test_a_branch_that_continues_another_begins_a_segment(worker):
    async def work(endpoint):
        if worker:
            await ask(endpoint, "", tools=[ADD])
        _, one = await ask(endpoint, "planner", tools=[ADD])
        told = [*SAME, one["choices"][0]["message"], {"role": "user", "content": "Do it."}]
        _, two = await ask(endpoint, worker, told, tools=[ADD])
        await ask(
            endpoint, worker, [*told, two["choices"][0]["message"], {"role": "user", "content": "More."}], tools=[ADD]
        )

    rewards = {"planner": 1.0} | ({worker: 0.5} if worker else {})
    replies = [*(["Hm."] if worker else []), "A plan.", "Done.", "More."]
    t = await rollout(agent(work, Reward(0.0, branches=rewards)), TASK, scripted(*replies))
    found = sorted((segment.branch, len(segment.turns)) for segment in t.segments)
    assert found == ([("", 1), ("planner", 1), ("worker", 2)] if worker else [("", 2), ("planner", 1)])
    assert t.earned == {"": 0.0, **rewards}


@pytest.mark.parametrize("name", ["so lver", "/x", "a" * 65, "é"])
async def test_a_name_that_cannot_be_one_is_refused(name):
    async def work(endpoint):
        await ask(endpoint, "")
        return await ask(endpoint, name.encode().decode("latin1"))

    env = agent(work)
    await rollout(env, TASK, ["42"])
    status, body = env.result
    assert (status, "X-Agentrl-Branch is" in body["error"]["message"]) == (400, True)


async def test_what_the_clients_of_agents_name_is_a_sub_agent():
    async def work(endpoint):
        headers = {"Authorization": f"Bearer {endpoint.key}", "x-session-id": "ab1", "x-parent-session-id": "m"}
        async with aiohttp.ClientSession(headers=headers) as http:
            await (await http.post(f"{endpoint.openai}/chat/completions", json={"messages": SAME})).read()
        await ask(endpoint, "", tools=[ADD])

    t = await rollout(agent(work, Reward(1.0, branches={"sub-agent": 0.0})), TASK, scripted("41", "42"))
    assert [segment.branch for segment in t.segments] == ["sub-agent/ab1", ""]
    assert t.earned == {"sub-agent": 0.0, "": 1.0}


async def test_a_title_is_a_side_branch_and_roles_that_no_program_named_may_be_missing():
    async def work(endpoint):
        await ask(endpoint, "", [{"role": "user", "content": "Write a title."}])
        await ask(endpoint, "", tools=[ADD])

    for rewards, earned in (
        ({"side": 0.0, "sub-agent": 0.0}, {"side": 0.0, "": 1.0}),
        ({"sub-agent": 0.0}, {"": 1.0}),
        ({}, {"": 1.0}),
    ):
        t = await rollout(agent(work, Reward(1.0, branches=rewards)), TASK, scripted("Sums", "42"))
        assert ([segment.branch for segment in t.segments], t.earned) == (["side", ""], earned)


@pytest.mark.parametrize(
    ("rewards", "error"),
    [
        ({"solver/1": 1.0}, "score gave branch 'solver/2' no reward"),
        ({"solver": 1.0, "judge": 1.0}, "score gave branch 'judge' a reward, .* its branches are solver/., solver"),
        ({"solver": float("nan")}, "the reward of branch 'solver' is nan"),
    ],
)
async def test_unknown_and_missing_names_are_named(rewards, error):
    t = await rollout(agent(three, Reward(1.0, branches=rewards)), TASK, scripted("42", "41", "One."))
    assert (t.failure.kind, t.failure.boundary) == ("bug", "score")
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(t.failure.error)


async def test_a_penalty_is_paid_by_the_branch_whose_call_could_not_be_read():
    async def work(endpoint):
        await ask(endpoint, "solver", tools=[ADD])
        await ask(endpoint, "judge", tools=[ADD])

    env = agent(work, Reward(1.0, branches={"solver": 1.0, "judge": 1.0}))
    type(env).bad_calls = BadCallPolicy(penalty=0.5)
    t = await rollout(env, TASK, scripted('<tool_call>\n{"name": "add", "argum</tool_call>', "Fine."))
    assert (t.reward, t.branch_rewards) == (0.5, {"solver": 0.5, "judge": 1.0})


async def test_a_session_that_is_read_from_its_log_has_the_same_branches(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path))
    t = await rollout(agent(three), TASK, scripted("42", "41", "The first."))
    [log] = tmp_path.iterdir()
    read = Trajectory()
    Session.replay(log.read_text().splitlines()).write(read)
    assert [(s.branch, s.tokens) for s in read.segments] == [(s.branch, s.tokens) for s in t.segments]
    assert read.info["agent"]["dropped"] == 0


def scored(value, branches):
    """An agent's three segments of one turn each, rewarded."""
    t = asyncio.run(rollout(agent(three, Reward(value, branches=branches)), TASK, scripted("42", "41", "One.")))
    assert t.failure is None
    return t


def test_branches_of_one_role_are_compared_over_the_group():
    group = [scored(1.0, {"solver/1": 1.0, "solver/2": 0.0}), scored(0.0, {"solver/1": 0.0, "solver/2": 0.0})]
    values, differs = assign_advantages([group], "dr_grpo", "episode")
    ((first, second),) = values
    assert (sorted(first[:2]), first[2]) == ([-0.25, 0.75], 0.5)  # whichever solver was read first
    assert second == [-0.25, -0.25, -0.5]
    assert differs == [True]
    whole = assign_advantages([group], "flash_reinforce", "episode")
    assert whole == (values, [True]), "the batch is this group"
    metrics = RolloutMetrics.of_groups([group])
    assert metrics.role_rewards == {"solver": 0.25, "main": 0.5}
    assert metrics.reward_mean == 0.5


class Ranks:
    """Ranks a group, as a judge does: the first episode is the best."""

    relative = True

    def __init__(self, **branches):
        self.branches = branches

    async def of_group(self, trajectories):
        return [Reward(1.0 - place, branches=self.branches) for place, _ in enumerate(trajectories)]


@pytest.mark.parametrize(
    ("ranks", "solvers"),
    [(Ranks(), [{"solver": 0.25}, {"solver": 0.75}]), (Ranks(solver=0.5), [{"solver": 0.5}] * 2)],
)
def test_a_judge_pays_the_main_line_and_branches_keep_the_rewards_of_score(ranks, solvers):
    group = [scored(0.0, {"solver": 0.25}), scored(1.0, {"solver": 0.75})]
    asyncio.run(score_group(ranks, group))
    assert [t.reward for t in group] == [1.0, 0.0]
    assert [t.reward_parts["score"] for t in group] == [0.0, 1.0]
    assert [t.branch_rewards for t in group] == solvers


def test_equal_totals_teach_if_the_branches_differ():
    group = [scored(1.0, {"solver/1": 1.0, "solver/2": 0.0}), scored(1.0, {"solver": 0.0})]
    [[one, other]], differs = assign_advantages([group], "dr_grpo", "episode")
    by_branch = dict(zip([segment.branch for segment in group[0].segments], one, strict=True))
    assert by_branch == pytest.approx({"solver/1": 2 / 3, "solver/2": -1 / 3, "": 0}), "the role counts once"
    assert other == pytest.approx([-1 / 3, -1 / 3, 0])
    assert differs == [True]
    assert assign_advantages([[scored(1.0, {"solver": 0.0})] * 2], "dr_grpo", "episode")[1] == [False]


@pytest.mark.parametrize("credit", ["turn", "return"])
def test_credit_of_turns_is_refused(credit):
    with pytest.raises(ConfigError, match=f"credit: {credit} is of turns"):
        assign_advantages([[scored(1.0, {"solver": 0.0})]], "grpo", credit)
