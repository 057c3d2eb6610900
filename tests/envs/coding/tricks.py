"""What tests of dishonest players share."""

from agentrl import EnvFactory
from agentrl.testing import call, rollout
from agentrl_envs.coding import CodingEnv

SPEC = {"memory_mb": 512, "pids": 64, "disk_mb": 64}
ISOLATED = ("bubblewrap", "docker")
HONEST = {"honest": "task", "honest_in_its_own_sandbox": "same"}
"""Controls -> where they are graded. Tricks that are graded as "same" would else be refused for nothing."""


def put(path, text):
    """A command that writes a file."""
    return f"mkdir -p $(dirname {path}) && cat > {path} <<'END_OF_FILE'\n{text.strip()}\nEND_OF_FILE"


async def played(backend, task, *commands, grading="task", spec=None):
    """The episode of a player that runs commands and submits."""
    config = {"backend": backend, "size": 1, "spec": {**SPEC, **(spec or {})}, "grading": grading, "command_s": 20}
    turns = [call("bash", command=command) for command in commands]
    async with EnvFactory(CodingEnv, config) as envs:
        return await rollout(envs.make(), task, [*turns, call("submit")])


def earned(trajectory):
    """The reward of an episode. One that failed is masked, so it pays nothing."""
    return 0.0 if trajectory.failure is not None else trajectory.reward


def told(trajectory):
    """What a failed assertion shows."""
    results = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    return trajectory.failure, trajectory.info.get("grading"), results
