"""agentrl.testing: what a user's own test needs, without a model, a download or torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from agentrl import Env, InfraError, Limits, StopReason, Task, Trajectory, tool
from agentrl.engine import Turn
from agentrl.testing import call, rollout


class FakeIndex:
    def top(self, query: str, n: int) -> list[str]:
        return [f"{query}: its capital is Paris."] * n


class Capitals(Env):
    shared: FakeIndex

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia; returns the three best passages."""
        return "\n".join(self.shared.top(query, 3))

    def score(self, t: Trajectory) -> float:
        return float(t.answer == self.task.label)


TASK = Task(prompt="Capital of France?", label="Paris")


async def test_finds_and_answers() -> None:
    env = Capitals(shared=FakeIndex())
    t = await rollout(env, TASK, [call("search", query="France"), "Paris"])
    assert (t.reward, t.stop, len(t.actions)) == (1.0, StopReason.DONE, 2)
    assert sum(t.loss_mask) == t.ledger.sampled == sum(len(a.tokens) for a in t.actions)
    assert t.actions[0].calls[0].arguments == {"query": "France"}
    assert "its capital is Paris" in t.messages[2]["content"]
    t.verify()


async def test_a_wrong_answer_scores_nothing() -> None:
    t = await rollout(Capitals(shared=FakeIndex()), TASK, ["Rome"])
    assert (t.reward, t.stop) == (0.0, StopReason.DONE)


async def test_a_player_reads_what_the_environment_answered_without_markup() -> None:
    read = []

    def player() -> Generator[Turn, str, None]:
        read.append((yield call("search", query="France")))
        yield "Paris"

    t = await rollout(Capitals(shared=FakeIndex()), TASK, player())
    assert t.reward == 1.0
    assert len(read) == 1
    assert "France: its capital is Paris." in read[0]
    assert "<" not in read[0], "no markup"


async def test_limits_end_the_episode() -> None:
    turns = [call("search", query=str(n)) for n in range(3)]
    t = await rollout(Capitals(shared=FakeIndex()), TASK, turns, limits=Limits(turns=2))
    assert (t.stop, len(t.actions)) == (StopReason.MAX_TURNS, 2)


async def test_a_script_that_is_too_short_is_the_tests_mistake() -> None:
    with pytest.raises(AssertionError, match="asked for turn 2, but the script has 1"):
        await rollout(Capitals(shared=FakeIndex()), TASK, [call("search", query="France")])


async def test_a_bug_in_a_player_is_raised_with_its_traceback() -> None:
    def player() -> Generator[Turn, str, None]:
        yield {}["missing"]

    with pytest.raises(AssertionError, match=r"KeyError: 'missing'[\s\S]*in player"):
        await rollout(Capitals(shared=FakeIndex()), TASK, player())


async def test_a_bug_in_a_tool_is_raised_unless_the_test_is_about_it() -> None:
    turns = [call("search", query="France"), "Paris"]
    with pytest.raises(
        AssertionError, match=r"a tool of Capitals raised .*test_testing\.py:\d+: AttributeError"
    ) as caught:
        await rollout(Capitals(), TASK, turns)  # shared= is forgotten: the model reads that None has no `top`
    assert isinstance(caught.value.__cause__, AttributeError)
    t = await rollout(Capitals(), TASK, turns, raise_tool_errors=False)
    assert (t.reward, t.info["tool_errors"]) == (1.0, {"search:AttributeError": 1})


async def test_a_broken_world_is_recorded_not_raised() -> None:
    class Broken(Env):
        @tool
        def search(self, query: str) -> str:
            raise InfraError("the index is down")

    t = await rollout(Broken(), TASK, [call("search", query="France"), "Paris"])
    assert t.stop is StopReason.FAILED
    assert t.failure is not None
    assert (t.failure.kind, t.failure.error) == ("environment", "InfraError: the index is down")


def player(task: Task) -> Generator[Turn, str, None]:
    yield f"<{task.label}>"


async def test_a_player_that_was_not_called_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(TypeError, match=r"rollout: player is a function; call it with the task: player\(task\)"):
        await rollout(Capitals(shared=FakeIndex()), TASK, player)  # type: ignore[arg-type]


async def test_a_turn_of_a_wrong_type_is_named() -> None:
    with pytest.raises(AssertionError, match=r"a turn is text, a message such as call\(\.\.\.\) makes, .*, not 3"):
        await rollout(Capitals(shared=FakeIndex()), TASK, [3])  # type: ignore[list-item]


async def test_an_engine_error_in_the_script_is_recorded() -> None:
    t = await rollout(Capitals(shared=FakeIndex()), TASK, [InfraError("no engine")])
    assert t.failure is not None
    assert (t.failure.kind, t.failure.boundary) == ("engine", "engine")


def test_a_tool_may_take_an_argument_called_name() -> None:
    message = call("lookup", name="Paris")
    assert message["tool_calls"][0]["function"] == {"name": "lookup", "arguments": {"name": "Paris"}}


def test_a_call_has_an_id_that_every_template_takes() -> None:
    ids = [call("lookup", **arguments)["tool_calls"][0]["id"] for arguments in ({"x": 1}, {"x": 1}, {"x": 2})]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(made) == 9 and made.isalnum() for made in ids)


@pytest.mark.thorough
def test_needs_no_torch() -> None:
    code = (
        "import asyncio, sys\n"
        "from agentrl import Env, StepResult, Task\n"
        "from agentrl.testing import rollout\n"
        "class Plain(Env):\n"
        "    async def step(self, action):\n"
        "        return StepResult(reward=1.0, done=True)\n"
        "assert asyncio.run(rollout(Plain(), Task(prompt='hi'), ['ho'])).reward == 1.0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
