"""The door to verifiers: a taskset and a harness of its v1 API, so also to prime-rl and to the Environments Hub.

    # weather_vf.py
    from agentrl.hosts.verifiers import environment

    Taskset, Harness = environment("my_env.py:MyEnv", limits={"turns": 4})
    __all__ = ["Harness", "Taskset"]

    vf-eval weather_vf --env.agent.harness.id weather_vf --env.agent.runtime.type subprocess

Written for verifiers 0.4.0. The harness plays in the process of verifiers, and sends each turn of the model to the
endpoint of the rollout. A failed episode is an error of the trace, and has no reward.

lost here: exact tokens (verifiers renders the messages, samples, and trains on its own tokens); log-probs; masks; text
without a template (`Raw`); images; seats; the parts of a reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.client import ChatModel
from agentrl.env.env import Env
from agentrl.errors import InfraError
from agentrl.hosts.turned import HostedEnv
from agentrl.types import Raw, Task

VERSION = "0.4.0"
_INFO = "agentrl"
"""The key of `trace.info` that holds the reward and the reason to stop."""


@dataclass(frozen=True, kw_only=True)
class RolloutModel(ChatModel):
    """The model of a rollout: the endpoint of verifiers, with the key of this rollout."""

    secret: str = field(default="", repr=False)

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


def environment(env: str | type[Env], **settings: Any) -> tuple[type, type]:
    """The taskset and the harness of an Env, for the `__all__` of a module. `settings` are the keys of `DoorConfig`.

    Raises ConfigError.
    """
    import verifiers.v1 as vf
    from verifiers.v1.runtimes import ProgramResult

    hosted = HostedEnv(env, **settings)

    class AgentRLTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
        @vf.reward  # type: ignore[untyped-decorator]
        async def reward(self, trace: Any) -> float:
            """The reward of the episode. A failed episode raised an error before."""
            return float(trace.info[_INFO]["reward"] or 0.0)

    class AgentRLTaskset(vf.Taskset[AgentRLTask, vf.TasksetConfig]):  # type: ignore[misc]
        def load(self) -> Iterator[Any]:
            for task in hosted.tasks():
                yield AgentRLTask(vf.TaskData(id=task.id, name=task.id, prompt=_shown(task)), self.config.task)

    class AgentRLHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        NEEDS_CONTAINER = False
        EXECUTES_CODE = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            """Play the whole episode. Raises InfraError if the environment fails, and BugError for a bug of the Env."""
            model = RolloutModel(base_url=endpoint, model=ctx.model, secret=secret)
            trajectory = await hosted.play_in_messages(hosted.by_id[data.id], model)
            if trajectory.failure is not None:
                raise InfraError(f"{trajectory.failure.boundary}: {trajectory.failure.error}")
            trace.info[_INFO] = {"reward": trajectory.reward, "stop": str(trajectory.stop)}
            return ProgramResult(0, "", "")

    return AgentRLTaskset, AgentRLHarness


def _shown(task: Task) -> Any:
    """The prompt of a task, which verifiers records. The Env may show another prompt after its reset."""
    return task.prompt.text if isinstance(task.prompt, Raw) else task.prompt or None
