"""The door to OpenEnv: a server of an Env, for each trainer that speaks OpenEnv's protocol.

    # server.py
    from agentrl.hosts.openenv import create_app

    app = create_app("my_env.py:MyEnv", limits={"turns": 4})

    uvicorn server:app --port 8000

Written for openenv 0.10.0. An action is the assistant's message; an observation has the new messages, the tools and, at
the end, the reward. `reset` takes the id of a task as `task_id`, or takes the task of number `seed`. A failed episode
is done without a reward, and its metadata has the `failure`.

lost here: exact tokens (the client renders the messages, samples, and trains on its own tokens); log-probs; masks; text
without a template (`Raw`); seats; the limits in tokens; a tool call that the client could not read is plain text, so
agentrl does not answer the call.
"""

from __future__ import annotations

from typing import Any

from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.hosts.turned import HostedEnv, MessageRequest, TurnedEpisode
from agentrl.plain import to_json_lossy
from agentrl.types import Message, Task

VERSION = "0.10.0"


def create_app(env: str | type[Env], *, max_concurrent_envs: int = 64, **settings: Any) -> Any:
    """A FastAPI application that serves an Env over OpenEnv's WebSocket. `settings` are the keys of `DoorConfig`.

    Raises ConfigError.
    """
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    hosted = HostedEnv(env, **settings)
    tasks = [*hosted.by_id.values()]

    class AssistantMessage(Action):  # type: ignore[misc]
        content: str = ""
        tool_calls: list[dict[str, Any]] = []  # noqa: RUF012 - a field of pydantic

    class NewMessages(Observation):  # type: ignore[misc]
        messages: list[dict[str, Any]] = []  # noqa: RUF012 - a field of pydantic
        tools: list[dict[str, Any]] = []  # noqa: RUF012 - a field of pydantic

    class MessageEnvironment(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._episode: TurnedEpisode[MessageRequest, Message] | None = None
            self._known = self._turns = 0

        async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **words: Any) -> Any:
            """Begin an episode. Raises ConfigError for an unknown task."""
            self.close()
            self._known = self._turns = 0
            self._episode = await hosted.turned_in_messages(self._task(words.get("task_id"), seed or 0))
            return self._observed(await self._episode.request())

        async def step_async(self, action: Any, timeout_s: float | None = None, **words: Any) -> Any:
            """Play the Env's answer to a message. Raises RuntimeError before a reset, and after the end."""
            if self._episode is None:
                raise RuntimeError("the episode has not begun: reset the environment first")
            self._turns += 1
            calls = {"tool_calls": action.tool_calls} if action.tool_calls else {}
            message: Message = {"role": "assistant", "content": action.content, **calls}
            return self._observed(await self._episode.reply(message))

        def reset(self, *args: Any, **words: Any) -> Any:
            raise NotImplementedError("the environment is asynchronous: call reset_async")

        def step(self, *args: Any, **words: Any) -> Any:
            raise NotImplementedError("the environment is asynchronous: call step_async")

        @property
        def state(self) -> Any:
            return State(step_count=self._turns)

        def close(self) -> None:
            """End the episode, as at the end of the client's session."""
            if self._episode is not None:
                self._episode.cancel()
                self._episode = None

        @staticmethod
        def _task(task_id: str | None, seed: int) -> Task:
            if task_id is None:
                return tasks[seed % len(tasks)]
            if task_id not in hosted.by_id:
                raise ConfigError(f"there is no task {task_id!r}; the first is {tasks[0].id!r}")
            return hosted.by_id[task_id]

        def _observed(self, request: MessageRequest | None) -> Any:
            if request is not None:
                fresh, self._known = request.messages[self._known :], len(request.messages) + 1  # and the answer
                return NewMessages(messages=to_json_lossy([*fresh]), tools=to_json_lossy([*request.tools]))
            assert self._episode is not None
            trajectory = self._episode.trajectory
            failure = {"failure": trajectory.failure.error} if trajectory.failure else {}
            reward = trajectory.reward if trajectory.is_valid else None
            return NewMessages(done=True, reward=reward, metadata={"stop": str(trajectory.stop), **failure})

    return create_fastapi_app(
        MessageEnvironment, AssistantMessage, NewMessages, max_concurrent_envs=max_concurrent_envs
    )
