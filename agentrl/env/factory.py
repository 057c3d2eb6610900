"""EnvFactory: finds an Env class, configures the class, and makes an Env for each episode."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from agentrl._util.concurrency import is_cancelled
from agentrl._util.loading import cause, load_object
from agentrl._util.resources import Resources
from agentrl.blame import is_the_worlds
from agentrl.env.config import own_config, validated_config
from agentrl.env.env import Env, is_agent, refuse_unknown
from agentrl.env.registry import is_name, path_of
from agentrl.env.tools import normal_spec
from agentrl.errors import AgentRLError, ConfigError, InfraError, leaves
from agentrl.types import JSON, Task

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

log = logging.getLogger("agentrl")


class EnvFactory:
    """An Env class, its configuration, and the result of `share`.

        async with EnvFactory("my_env.py:Capitals", {"corpus": "facts.jsonl"}) as envs:
            trajectory = await run_episode(envs.make(), task, engine=engine, renderer=renderer)

    `env` is a class, `file.py:Class`, `package.module:Class`, or a name from `agentrl envs`. Raises ConfigError for a
    missing class, for a class without tools, step and score, for a class with `snapshot` but no `restore` (or the
    reverse), and for an invalid configuration.
    """

    def __init__(self, env: str | type[Env], config: Mapping[str, JSON] | None = None) -> None:
        self.cls = load_env(env) if isinstance(env, str) else env
        self.cls._agentrl_check()
        if (self.cls.snapshot is Env.snapshot) != (self.cls.restore is Env.restore):
            raise ConfigError(f"{self.cls.__name__} writes one of snapshot and restore without the other; write both")
        try:
            signature = inspect.signature(self.cls.__init__)
            signature.bind(None, config, shared=None)
        except TypeError:
            raise ConfigError(
                f"{self.cls.__name__}.__init__{signature} does not take (config, shared=...); "
                "remove __init__ and begin in reset, or pass both to super().__init__(config, shared=shared)"
            ) from None
        self.config = validated_config(self.cls, config)
        self.shared: Any = None
        self._resources = Resources(patience=60.0)  # parked Envs are closed first

    async def __aenter__(self) -> Self:
        try:
            self.shared = await self._enter()
        except AgentRLError:
            raise
        except (Exception, asyncio.CancelledError) as exc:  # the boundary of `share`: no episode is played without it
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                raise
            if isinstance(exc, asyncio.CancelledError) or all(map(is_the_worlds, leaves(exc))):
                raise InfraError(f"{self.cls.__name__}.share: {cause(exc)}") from exc
            raise ConfigError(f"{self.cls.__name__}.share failed: {cause(exc)}") from exc
        return self

    async def _enter(self) -> Any:
        """Call `share`. If the caller is cancelled, `__aexit__` never runs, so this method itself closes open
        resources."""
        try:
            return await self._resources.enter(_sharing(self.cls, self.config))
        except asyncio.CancelledError:
            for error in await self._resources.close():
                log.warning("closing what %s.share opened failed", self.cls.__name__, exc_info=error)
            raise

    async def __aexit__(self, *exc: object) -> None:
        errors = await self._resources.close()
        if errors:
            raise errors[0]

    def check(self, task: Task) -> None:
        """Raises ConfigError if the class cannot execute one of the task's own tools."""
        if self.cls.tools is Env.tools and not is_agent(self.cls):
            refuse_unknown(self.cls, map(normal_spec, task.tools))

    def prove(self, renderer: Renderer) -> None:
        """Raises TemplateError if the template cannot carry the Env's own tools, or, for an agent, every role."""
        self.cls._agentrl_prove(renderer)

    def make(self) -> Env:
        """An Env for one episode. Raises ConfigError if `__init__` of the class does not call `Env.__init__`."""
        env = self.cls(own_config(self.cls, self.config), shared=self.shared)
        if not hasattr(env, "config"):
            raise ConfigError(f"{self.cls.__name__}.__init__ has to call super().__init__(config, shared=shared)")
        return env


@asynccontextmanager
async def _sharing(cls: type[Env], config: Any) -> AsyncIterator[Any]:
    """An async context manager for the result of `share`. The same asyncio task enters and exits the user's context
    manager."""
    shared = cls.share(config)
    if inspect.isawaitable(shared):
        shared = await shared
    if isinstance(shared, AbstractAsyncContextManager):
        async with shared as entered:
            yield entered
    else:
        yield shared


def load_env(path: str) -> type[Env]:
    """The Env class at `file.py:Class` or `package.module:Class`, or of an installed environment's name.

    Raises ConfigError, which names the missing file, module or class.
    """
    cls = load_object(path_of(path) if is_name(path) else path, Env)
    if not (isinstance(cls, type) and issubclass(cls, Env)):
        raise ConfigError(f"{path} is {cls!r}, not a subclass of agentrl.Env")
    return cls
