"""Env: a multi-turn environment, written once; and how one is found, configured and made."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel

from agentrl._concurrency import is_cancelled
from agentrl._resources import Resources
from agentrl.env_config import validated_config
from agentrl.errors import AgentRLError, BadCallPolicy, ConfigError, InfraError
from agentrl.loading import cause, load_object
from agentrl.runtime import Runtime
from agentrl.tool_calls import exec_own_tool, run_calls
from agentrl.tools import Tool, collect_tools, is_tool, normal_spec, tool_name
from agentrl.types import (
    JSON,
    Action,
    Limits,
    MaybeAwait,
    Observation,
    Reward,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnOptions,
)

if TYPE_CHECKING:
    from agentrl.trajectory import Trajectory

T = TypeVar("T")
log = logging.getLogger("agentrl")

_HOOKS = frozenset(
    {
        *("share", "tools", "reset", "step", "exec_tool", "last_turn", "score", "close", "snapshot", "restore"),
        "run_tools",
    }
)
"""Methods that a subclass may replace by its own."""
_SETTINGS: Mapping[str, UnionType | type] = {
    "turn_options": TurnOptions,
    "bad_calls": BadCallPolicy | None,
    "deterministic": bool,
}
_KEPT: Mapping[str, str] = {
    "config": "env_config fills it in: annotate it, without a value (`config: MyConfig`)",
    "shared": "what `share` makes is put there: annotate it, without a value",
    "task": "the episode's Task is put there",
    "rng": "the episode's random numbers are put there",
    "enter": "hooks own resources by it",
    "call": "hooks call blocking functions by it",
}
"""Names that agentrl fills in itself, and why."""


class Env:
    """One episode of an environment: made, reset once, stepped, closed.

    Write `@tool` methods and `score`; override `reset` or `step` where the defaults do not serve. A hook may be `def`
    or `async def`: a plain one runs in a thread that belongs to this Env, so it may block. Hooks see:

    - `self.config`: what the run was configured with; annotate it with a pydantic model to have it validated
    - `self.shared`: what `share` made for all episodes
    - `self.task`: the Task, from `reset` on
    - `self.rng`: random numbers of this Env, seeded by `task.seed`
    """

    config: Any
    shared: Any
    task: Task
    rng: Random
    turn_options: ClassVar[TurnOptions] = TurnOptions()
    """What each turn asks of the engine: stop strings, a token budget."""
    bad_calls: ClassVar[BadCallPolicy | None] = BadCallPolicy()
    """What becomes of wrong tool calls. Calls that could not be read are answered by it and never reach `step`; a turn
    with no other calls does not either. None, or no tools: nothing is done about them, and `step` sees them all."""
    deterministic: ClassVar[bool] = False
    """The same actions always get the same answers, and repeating them harms nobody: an episode that was aborted may go
    on in a fresh Env, in which its recorded actions are executed again. Not asked where there is a `snapshot`."""
    _agentrl_tools: ClassVar[Mapping[str, Tool]] = {}
    _agentrl: Runtime

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_names(cls)
        cls._agentrl_tools = collect_tools(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        env = super().__new__(cls)
        env._agentrl = Runtime(cls.__name__, _OWN)
        return env

    def __init__(self, config: BaseModel | Mapping[str, JSON] | None = None, *, shared: Any = None) -> None:
        self.config = validated_config(type(self), config)
        self.shared = shared

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOOKS and not callable(value):
            raise ConfigError(
                f"{type(self).__name__} sets self.{name} to {value!r}, but Env.{name} is a hook; choose another name"
            )
        if name in _SETTINGS and not isinstance(value, _SETTINGS[name]):
            raise ConfigError(f"{type(self).__name__} sets self.{name} to {value!r}; it must be {_kind(name)}")
        super().__setattr__(name, value)

    # Hooks

    @classmethod
    def share(cls, config: Any, /) -> Any:
        """Make what all episodes share: an index, a pool. Once a process and event loop.

        An async context manager is entered, and exited at the end; an awaitable is awaited.
        """
        return None

    def tools(self) -> MaybeAwait[Sequence[ToolSpec]]:
        """Asked once after reset. Default: the @tool methods, then the task's own."""
        return [*(tool.spec for tool in self._agentrl_tools.values()), *map(normal_spec, self.task.tools)]

    def reset(self, task: Task, /) -> MaybeAwait[Observation]:
        """The first observation. Default: the task's prompt."""
        return task.prompt

    def step(self, action: Action, /) -> MaybeAwait[StepResult]:
        """Answer one turn of the model. Default: `run_tools`."""
        return self.run_tools(action)

    def exec_tool(self, call: ToolCall, /) -> MaybeAwait[ToolResult | JSON]:
        """Execute one call. Default: the @tool method of that name, its arguments validated. Raise ToolError to answer
        the model with an error, CallError where the call is to blame, InfraError when the world broke."""
        return exec_own_tool(self, call)

    def last_turn(self, reason: StopReason, /) -> MaybeAwait[Observation | None]:
        """Asked when `Limits.turns` is reached: an observation, joined to the pending one, buys exactly one more turn,
        say for a forced answer. `step` sees that turn too. Default: None, the episode ends."""
        return None

    def score(self, trajectory: Trajectory, /) -> MaybeAwait[float | Reward | None]:
        """The total reward, asked once before close unless the episode failed or was aborted.

        Default: the sum of the rewards that steps gave; None, unscored, if none did.
        """
        return sum(trajectory.step_rewards) if trajectory.step_rewards else None

    def close(self) -> MaybeAwait[None]:
        """Called on every path, also when reset was cancelled half-way. Rarely needed: see `enter`."""
        return None

    def snapshot(self) -> MaybeAwait[Any]:
        """The state of an aborted episode, as something pickle can write; this Env is closed after it.

        With `restore`, an episode goes on later in another Env, maybe in another process. An Env without the two stays
        open for a bounded time instead, or is replayed where it is `deterministic`.
        """
        raise NotImplementedError(f"{type(self).__name__} writes no snapshot")

    def restore(self, state: Any, /) -> MaybeAwait[None]:
        """Called on a fresh Env instead of `reset`, with what `snapshot` returned.

        `self.task` and `self.rng` are as they were; resources are to be entered anew.
        """
        raise NotImplementedError(f"{type(self).__name__} restores no snapshot")

    # For hooks to use

    async def run_tools(self, action: Action) -> StepResult:
        """Execute the action's calls concurrently and answer them in the order called; done when there are none."""
        return await run_calls(self, action.calls) if action.calls else StepResult(done=True)

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Own a resource until this Env is closed, also when the caller is cancelled while it opens."""
        return await self._agentrl.enter(resource)

    async def call(self, function: Callable[..., MaybeAwait[T]], *args: Any, timeout: float | None = None) -> T:
        """Call a function that may block in this Env's thread, which runs one at a time; an `async def` in this task.

        Raises TimeoutError naming it after `timeout` seconds, the wait for the thread left out. A thread cannot be
        stopped: a function that outlives its deadline keeps it until it returns.
        """
        return await self._agentrl.call(function, *args, timeout=timeout)


_OWN = frozenset(member for member in vars(Env).values() if inspect.isfunction(member))
"""Env's own hooks never block, and open nothing."""


def runtime(env: Env) -> Runtime:
    """What an episode keeps beside its Env, and calls its hooks by."""
    return env._agentrl


def begin_env(env: Env, task: Task, limits: Limits) -> None:
    """Bind an Env to its only episode. Raises RuntimeError on a second one: Envs are single-use."""
    if hasattr(env, "task"):
        raise RuntimeError(f"{type(env).__name__} was used before; an Env is made anew for each episode")
    env.task, env._agentrl.limits = task, limits
    env.rng = env._agentrl.rng = Random(task.seed)


async def offered_tools(env: Env) -> tuple[ToolSpec, ...]:
    """What the model may call, as chat templates take it. Raises ConfigError for a tool that nobody would execute."""
    given = await env._agentrl.hook(env.tools, timeout=env._agentrl.limits.reset_s)
    offered = tuple(map(normal_spec, given))
    _refuse_unknown(type(env), offered)
    env._agentrl.offered = tuple(map(tool_name, offered))
    return offered


def _refuse_unknown(cls: type[Env], offered: Iterable[ToolSpec]) -> None:
    unknown = [name for name in map(tool_name, offered) if name not in cls._agentrl_tools]
    if unknown and cls.exec_tool is Env.exec_tool and cls.step is Env.step:
        raise ConfigError(
            f"{cls.__name__} cannot execute the tool {unknown[0]!r} that it offers; "
            "write exec_tool(call), or a @tool method of that name"
        )


async def close_env(env: Env) -> Exception | None:
    """Close an Env and wait for it, also while being cancelled. Its error is logged and returned, not raised."""
    closing, cancelled = asyncio.create_task(env._agentrl.close(env.close)), None
    while not closing.done():
        try:
            await asyncio.wait([closing])
        except asyncio.CancelledError as exc:
            cancelled = exc
    error = asyncio.CancelledError() if closing.cancelled() else closing.exception()
    if error is not None:
        log.warning("closing %s failed", type(env).__name__, exc_info=error)
    if cancelled is not None:
        raise cancelled
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


class EnvFactory:
    """An Env class with its configuration and what its episodes share.

        async with EnvFactory("my_env.py:Capitals", {"corpus": "facts.jsonl"}) as envs:
            trajectory = await run_episode(envs.make(), task, engine=engine, renderer=renderer)

    `env` is a class, `file.py:Class` or `package.module:Class`. Raises ConfigError if it cannot be found, has neither
    tools nor a step, writes one of `snapshot` and `restore` without the other, or refuses its configuration.
    """

    def __init__(self, env: str | type[Env], config: Mapping[str, JSON] | None = None) -> None:
        self.cls = load_env(env) if isinstance(env, str) else env
        own = self.cls.step, self.cls.tools, self.cls.exec_tool
        if not self.cls._agentrl_tools and own == (Env.step, Env.tools, Env.exec_tool):
            raise ConfigError(
                f"{self.cls.__name__} has neither tools nor a step: nothing could ever happen; "
                "add a method with @tool, or override step(action)"
            )
        if (self.cls.snapshot is Env.snapshot) != (self.cls.restore is Env.restore):
            raise ConfigError(f"{self.cls.__name__} writes one of snapshot and restore without the other; write both")
        try:
            signature = inspect.signature(self.cls.__init__)
            signature.bind(None, config, shared=None)
        except TypeError:
            raise ConfigError(
                f"{self.cls.__name__}.__init__{signature} does not take (config, shared=...); "
                "leave it out and begin in reset, or pass them on to super().__init__(config, shared=shared)"
            ) from None
        self.config = validated_config(self.cls, config)
        self.shared: Any = None
        self._resources = Resources(patience=60.0)  # Envs that still wait for their host are closed before

    async def __aenter__(self) -> Self:
        try:
            self.shared = await self._resources.enter(_sharing(self.cls, self.config))
        except AgentRLError:
            raise
        except (TimeoutError, ConnectionError, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                raise
            raise InfraError(f"{self.cls.__name__}.share: {cause(exc)}") from exc
        except Exception as exc:  # the boundary of `share`: without what it makes, no episode can be played
            raise ConfigError(f"{self.cls.__name__}.share failed: {cause(exc)}") from exc
        return self

    async def __aexit__(self, *exc: object) -> None:
        errors = await self._resources.close()
        if errors:
            raise errors[0]

    def check(self, task: Task) -> None:
        """Raises ConfigError for a task whose own tools nobody would execute."""
        if self.cls.tools is Env.tools:
            _refuse_unknown(self.cls, map(normal_spec, task.tools))

    def make(self) -> Env:
        """An Env for one episode. Raises ConfigError where the class has an `__init__` that leaves out Env's own."""
        env = self.cls(self.config, shared=self.shared)
        if not hasattr(env, "config"):
            raise ConfigError(f"{self.cls.__name__}.__init__ has to call super().__init__(config, shared=shared)")
        return env


@asynccontextmanager
async def _sharing(cls: type[Env], config: Any) -> AsyncIterator[Any]:
    """What `share` makes, in one task from its first line to its last."""
    shared = cls.share(config)
    if inspect.isawaitable(shared):
        shared = await shared
    if isinstance(shared, AbstractAsyncContextManager):
        async with shared as entered:
            yield entered
    else:
        yield shared


def load_env(path: str) -> type[Env]:
    """The Env class at `file.py:Class` or `package.module:Class`. Raises ConfigError naming what is missing."""
    found = load_object(path, Env)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigError(f"{path} is {found!r}, not a subclass of agentrl.Env")
    return found


def _refuse_names(cls: type[Env]) -> None:
    """Names that mean something to agentrl may not be taken for something else. Raises ConfigError."""
    for name, value in vars(cls).items():
        marked = is_tool(value)
        if marked and (name in _HOOKS or name in _KEPT or name in _SETTINGS):
            raise ConfigError(
                f"{cls.__name__}: a tool method named {name!r} hides Env.{name}; "
                f"give it another name, and @tool(name={name!r}) for the model"
            )
        if name in _KEPT:
            raise ConfigError(f"{cls.__name__}.{name} hides Env.{name}: {_KEPT[name]}; choose another name")
        if name in _HOOKS and not callable(value) and not isinstance(value, staticmethod | classmethod):
            raise ConfigError(f"{cls.__name__}.{name} is {value!r}, but Env.{name} is a hook; choose another name")
        if name == "share" and inspect.isfunction(value):
            raise ConfigError(f"{cls.__name__}.share is called on the class: write @classmethod above it")
        if name in _SETTINGS and not isinstance(value, _SETTINGS[name] | property):
            raise ConfigError(f"{cls.__name__}.{name} is {value!r}; it must be {_kind(name)}")


def _kind(setting: str) -> str:
    return getattr(_SETTINGS[setting], "__name__", str(_SETTINGS[setting]))
