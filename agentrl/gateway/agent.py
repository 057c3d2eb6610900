"""AgentEnv: an Env around an existing agent, which asks its model over HTTP and runs its own tools."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from agentrl._util.boundary import at_boundary
from agentrl.chat.options import SessionOptions
from agentrl.chat.tokens.writer import prove_for_agents
from agentrl.env.env import Env, runtime
from agentrl.env.tools import is_tool
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.errors import ConfigError
from agentrl.gateway.endpoint import Endpoint
from agentrl.gateway.playing import AgentRun
from agentrl.gateway.session.session import Session
from agentrl.render.base import Renderer
from agentrl.types import JSON, MaybeAwait, StopReason, Task

__all__ = ["AgentEnv", "Endpoint", "SessionOptions"]

_TURN_BY_TURN = frozenset(
    {
        "tools",
        "reset",
        "step",
        "exec_tool",
        "last_turn",
        "ask_summary",
        "after_summary",
        "run_tools",
        "snapshot",
        "restore",
        "turn_options",
        "deterministic",
    }
)
"""Members of an Env that handle single turns. An AgentEnv must not define these members."""


class AgentEnv(Env):
    """One episode of an agent that asks a model over HTTP. The agent runs unchanged and is trained token for token.

    Write `run` and `score`. `share`, `close`, `self.config`, `self.shared`, `self.task` and `self.enter` work as in any
    Env. The agent sends its requests to `endpoint`, and executes its own tools.
    """

    session: ClassVar[SessionOptions] = SessionOptions()
    """How the agent's requests become tokens to train on."""
    result: JSON = None
    """The return value of `run`. None until `run` returns, and if a limit ended the agent."""
    _playing: AgentRun | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_turns(cls)

    def run(self, task: Task, endpoint: Endpoint, /) -> MaybeAwait[JSON]:
        """Start the agent, and return when the agent is done. The return value must be JSON, and becomes `self.result`.

        If the episode ends first, `run` is cancelled. A plain `def` runs in a thread, which cannot be cancelled: its
        requests are refused instead, and `score` runs in another thread. An exception in `run` is a failure of the
        episode, unless a limit has ended the session. So `run` must catch the model's own mistakes, such as a call of
        an unknown tool.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run")

    @classmethod
    def _agentrl_check(cls) -> None:
        if cls.run is AgentEnv.run:
            raise ConfigError(
                f"{cls.__name__} has no run; write `async def run(self, task, endpoint)`, which starts the agent"
            )

    @classmethod
    def _agentrl_prove(cls, renderer: Renderer, /) -> None:
        prove_for_agents(renderer)

    async def _agentrl_play(self, episode: Any, seconds: float | None, /) -> StopReason:
        if self._playing is None:
            with at_boundary("run"):
                self._playing = await self._begin(episode.talk.options.gateway)
        try:
            return await self._playing.run_until_pause(episode, seconds)
        finally:
            self.result = self._playing.result

    def _agentrl_read(self, answer: str | None, /) -> str | None:
        return None if self._playing is None else self._playing.read

    async def _begin(self, config: GatewayConfig) -> AgentRun:
        """Open a session at the gateway of this event loop. Raises ConfigError if the gateway cannot start."""
        from agentrl.gateway.serving.server import loop_gateway  # aiohttp is imported only if it is used

        if not isinstance(self.session, SessionOptions):
            raise ConfigError(f"{type(self).__name__}.session is {self.session!r:.80}; write SessionOptions(...)")
        gateway = await loop_gateway(config)
        session = Session(f"sk-{secrets.token_hex(20)}", options=self.session)
        endpoint = Endpoint(key=session.key, url=gateway.url, socket=str(gateway.socket_path))
        playing = AgentRun(self, self.run, session, endpoint, leave=lambda: gateway.remove(session))
        gateway.add(session)
        runtime(self).before_close = playing.end
        return playing


def _refuse_turns(cls: type[AgentEnv]) -> None:
    """Raises ConfigError if the class defines members for single turns, which would never be used."""
    for name, value in vars(cls).items():
        if is_tool(value):
            raise ConfigError(
                f"{cls.__name__}.{name} is marked with @tool, but an agent has its own tools: "
                "pass it to the agent in run(task, endpoint)"
            )
        if name in _TURN_BY_TURN:
            raise ConfigError(
                f"{cls.__name__}.{name} is never called: an agent takes its turns by itself; "
                "move it into run(task, endpoint)"
            )
