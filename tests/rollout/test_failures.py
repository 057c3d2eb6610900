"""What is kept of the attempts of an episode."""

from agentrl import Task, Trajectory
from agentrl.errors import Failure
from agentrl.rollout.play.failures import FailurePolicy, with_retries


async def test_the_last_attempt_names_the_errors_of_the_earlier_ones():
    async def play(attempt):
        played = [Trajectory(Task(prompt="x"), session_id=f"s{attempt}"), Trajectory(Task(prompt="x"))]
        if attempt < 2:
            played[1].failure = Failure("environment", "step", f"SandboxError: host {attempt} was lost")
        return played

    last = await with_retries(FailurePolicy(again=3), play)
    assert [one.info["restarted"] for one in last] == [
        ["SandboxError: host 0 was lost", "SandboxError: host 1 was lost"]
    ] * 2
    (first, _) = await with_retries(FailurePolicy(), lambda attempt: play(2))
    assert "restarted" not in first.info
