"""The door to OpenEnv: a server of an Env, for each trainer that speaks OpenEnv's protocol.

    # server.py
    from agentrl.hosts.openenv import create_app

    app = create_app("my_env.py:MyEnv", limits={"turns": 4})

    uvicorn server:app --port 8000

Written for openenv 0.10.0. An action is the assistant's message; an observation has the new messages, the tools and, at
the end, the reward. `reset` takes the id of a task as `task_id`, or takes the task of number `seed`. A failed episode
is done without a reward, and its metadata has the `failure`.

lost here: exact tokens (the client renders the messages, samples, and trains on its own tokens); log-probs; masks; text
without a template (`Raw`); seats; images; agents with several conversations; the limits in tokens; a tool call that the
client could not read is plain text, so agentrl does not answer the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.env.env import Env
from agentrl.errors import ConfigError
from agentrl.hosts.turned import HostedEnv, MessageRequest, TurnedEpisode
from agentrl.plain import to_json_lossy
from agentrl.types import JSON, Message, Task

VERSION = "0.10.0"


def create_app(env: str | type[Env], *, max_concurrent_envs: int = 64, **settings: Any) -> Any:
    """A FastAPI application that serves an Env over OpenEnv's WebSocket. `settings` are the keys of `DoorConfig`.

    Raises ConfigError.
    """
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    hosted = HostedEnv(env, **settings)
    hosted.tasks()  # an Env without tasks is refused before the server starts

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
            self._session = MessageSession(hosted)

        async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **words: Any) -> Any:
            return NewMessages(**await self._session.reset(words.get("task_id"), seed or 0))

        async def step_async(self, action: Any, timeout_s: float | None = None, **words: Any) -> Any:
            return NewMessages(**await self._session.answer(action.content, action.tool_calls))

        def reset(self, *args: Any, **words: Any) -> Any:
            raise NotImplementedError("the environment is asynchronous: call reset_async")

        def step(self, *args: Any, **words: Any) -> Any:
            raise NotImplementedError("the environment is asynchronous: call step_async")

        @property
        def state(self) -> Any:
            return State(step_count=self._session.turns)

        def close(self) -> None:
            self._session.close()

    return create_fastapi_app(
        MessageEnvironment, AssistantMessage, NewMessages, max_concurrent_envs=max_concurrent_envs
    )


class MessageSession:
    """The session of a client: an episode at a time. Methods return the fields of an observation."""

    def __init__(self, hosted: HostedEnv) -> None:
        self._hosted = hosted
        self._episode: TurnedEpisode[MessageRequest, Message] | None = None
        self._known: Sequence[Message] = ()
        """The messages that the client knows, without the latest answer."""
        self.turns = 0

    async def reset(self, task_id: str | None, seed: int) -> dict[str, JSON]:
        """Begin an episode. Raises ConfigError for an unknown task."""
        self.close()
        self._known, self.turns = (), 0
        self._episode = await self._hosted.turned_in_messages(self._task(task_id, seed))
        return self._observed(self._episode, await self._episode.request())

    async def answer(self, content: str, tool_calls: Sequence[JSON]) -> dict[str, JSON]:
        """Play the Env's answer to a message. Raises RuntimeError before a reset, and after the end."""
        if self._episode is None:
            raise RuntimeError("the episode has not begun: reset the environment first")
        self.turns += 1
        calls = {"tool_calls": [*tool_calls]} if tool_calls else {}
        message: Message = {"role": "assistant", "content": content, **calls}
        return self._observed(self._episode, await self._episode.reply(message))

    def close(self) -> None:
        """End the episode, as at the end of the client's session."""
        if self._episode is not None:
            self._episode.cancel()
            self._episode = None

    def _task(self, task_id: str | None, seed: int) -> Task:
        tasks = self._hosted.by_id
        if task_id is None:
            return [*tasks.values()][seed % len(tasks)]
        if task_id not in tasks:
            raise ConfigError(f"there is no task {task_id!r}; the first is {next(iter(tasks))!r}")
        return tasks[task_id]

    def _observed(
        self, episode: TurnedEpisode[MessageRequest, Message], request: MessageRequest | None
    ) -> dict[str, JSON]:
        if request is not None:
            known, self._known = self._known, request.messages
            if [*request.messages[: len(known)]] != [*known]:
                raise ConfigError(
                    f"{self._hosted.factory().cls.__name__} begins another conversation, which this door cannot pass on"
                )
            fresh = request.messages[len(known) + bool(known) :]  # without the answer
            return {"messages": to_json_lossy([*fresh]), "tools": to_json_lossy([*request.tools])}
        trajectory = episode.trajectory
        failure = {"failure": trajectory.failure.error} if trajectory.failure else {}
        reward = trajectory.reward if trajectory.is_valid else None
        return {"done": True, "reward": reward, "metadata": {"stop": str(trajectory.stop), **failure}}
