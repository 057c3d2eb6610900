"""examples/tau2: tau2's domains as an Env. The suite is large, so most tests are skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentrl import EnvFactory, Limits
from agentrl._util.loading import load_object
from agentrl.errors import ConfigError
from agentrl.rollout.data.tasks import own_tasks
from agentrl.testing import call, rollout

HERE = Path(__file__).parents[2] / "examples" / "tau2"
ENV = f"{HERE}/tau2.py:Tau2"
AIRLINE = {"domain": "airline"}
needs_suite = pytest.mark.skipif(
    importlib.util.find_spec("inspect_evals") is None,
    reason="tau2 needs inspect-evals: pip install inspect-evals==0.26.0",
)


def test_a_row_is_copied_when_it_is_taken():
    originals = {"a": [1], "b": [2]}
    rows = load_object(f"{HERE}/tau2_suite.py:Rows")(originals)
    rows["a"].append(9)
    rows["c"] = [3]

    assert originals == {"a": [1], "b": [2]}
    assert (dict(rows), rows.changed) == ({"a": [1, 9], "b": [2], "c": [3]}, {"a", "c"})
    assert rows.get("b") is not originals["b"]
    assert rows.get("d") is None


@pytest.mark.skipif(importlib.util.find_spec("inspect_evals") is not None, reason="tau2's suite is installed")
def test_without_the_suite_it_is_said_what_to_install():
    with pytest.raises(ConfigError, match=r"pip install inspect-evals==0\.26\.0"):
        load_object(f"{HERE}/tau2_suite.py:load_domain")("retail")


@needs_suite
@pytest.mark.filterwarnings("default")
async def test_the_right_calls_win_and_others_do_not():
    gold = load_object(f"{HERE}/players.py:gold")
    tasks = own_tasks(EnvFactory(ENV, AIRLINE), "train")
    task = next(task for task in tasks if any(a["name"] == "cancel_reservation" for a in task.metadata["actions"]))
    [cancel, *_] = [a for a in task.metadata["actions"] if a["name"] == "cancel_reservation"]
    async with EnvFactory(ENV, AIRLINE) as envs:
        won = await rollout(envs.make(), task, gold(task), limits=Limits(turns=40))
        lost = await rollout(envs.make(), task, ["No."], limits=Limits(turns=3))
        env = envs.make()
        await rollout(env, task, [call(cancel["name"], **cancel["arguments"]), "Done."], limits=Limits(turns=1))
        again = envs.make()
        again.task = task
        again.restore(env.snapshot())
        wrong = (call("cancel_reservation", reservation_id="none"), call("fly"), call("calculate", expression=None))
        bad = await rollout(envs.make(), task, [*wrong, "No."])

    assert (won.reward, lost.reward) == (1.0, 0.0)
    assert again.world.changes() == env.world.changes() != {}
    assert again.user.messages == env.user.messages
    assert next(m["content"] for m in bad.messages if m["role"] == "tool") == "Error: Reservation none not found"
    assert [turn.bad_call for turn in bad.turns] == [None, "content", None, None]
    assert "tool_errors" not in bad.info
