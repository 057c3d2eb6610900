"""Env: a multi-turn environment, written once; and how one is found, configured and made."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError

from agentrl._concurrency import Worker, gather
from agentrl.errors import CallError, ConfigError, InfraError, ParseError, ParsePolicy, ToolError
from agentrl.loading import load_object
from agentrl.tools import Tool, collect_tools
from agentrl.types import (
    JSON,
    Action,
    Ask,
    Limits,
    MaybeAwait,
    Message,
    Observation,
    Reward,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
)

if TYPE_CHECKING:
    from agentrl.trajectory import Trajectory

T = TypeVar("T")
log = logging.getLogger("agentrl")

HOOKS = frozenset(
    {
        *("ask", "parse_errors", "share", "tools", "reset", "step", "exec_tool", "last_turn", "score", "close"),
        *("snapshot", "restore", "deterministic", "run_tools", "enter", "call"),
    }
)


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
    ask: ClassVar[Ask] = Ask()
    """What each turn asks of the engine: stop strings, a token budget."""
    parse_errors: ClassVar[ParsePolicy | None] = ParsePolicy()
    """What becomes of wrong tool calls. Calls that could not be read are answered by it and never reach `step`; a turn
    with no other calls does not either. None, or no tools: nothing is done about them, and `step` sees them all."""
    deterministic: ClassVar[bool] = False
    """The same actions always get the same answers, and repeating them harms nobody: an episode that was aborted may go
    on in a fresh Env, in which its recorded actions are executed again. Not asked where there is a `snapshot`."""
    _tools: ClassVar[Mapping[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS:
            if hasattr(vars(cls).get(name), "__agentrl_tool__"):
                raise ConfigError(
                    f"{cls.__name__}: a tool method named {name!r} hides a hook; use @tool(name={name!r})"
                )
        cls._tools = collect_tools(cls)

    def __init__(self, config: BaseModel | Mapping[str, JSON] | None = None, *, shared: Any = None) -> None:
        self.config = _validated_config(type(self), config)
        self.shared = shared
        self.limits = Limits()
        self.tool_errors: dict[str, int] = {}
        """Unexpected exceptions in tools, counted by type. A bug hides here when this is not empty."""
        self.call_errors: list[ParseError] = []
        """Calls of the last action that named no tool or had arguments that do not fit."""
        self._resources = AsyncExitStack()
        self._thread = Worker(f"env-{type(self).__name__}")
        self._alone = asyncio.Lock()

    # Hooks

    @classmethod
    def share(cls, config: Any, /) -> Any:
        """Make what all episodes share: an index, a pool. Once a process and event loop.

        An async context manager is entered, and exited at the end; an awaitable is awaited.
        """
        return None

    def tools(self) -> Sequence[ToolSpec]:
        """Asked once after reset. Default: the @tool methods, then the task's own."""
        return [*(tool.spec for tool in self._tools.values()), *self.task.tools]

    def reset(self, task: Task, /) -> MaybeAwait[Observation]:
        """The first observation. Default: the task's prompt."""
        return task.prompt

    def step(self, action: Action, /) -> MaybeAwait[StepResult]:
        """Answer one turn of the model. Default: `run_tools`."""
        return self.run_tools(action)

    def exec_tool(self, call: ToolCall, /) -> MaybeAwait[ToolResult | JSON]:
        """Execute one call. Default: the @tool method of that name, its arguments validated. Raise ToolError to answer
        the model with an error, CallError where the call is to blame, InfraError when the world broke."""
        return self._exec_own_tool(call)

    def last_turn(self, reason: StopReason, /) -> MaybeAwait[Observation | None]:
        """Asked when `Limits.turns` is reached: an observation, joined to the pending one, buys exactly one more turn,
        say for a forced answer. `step` sees that turn too. Default: None, the episode ends."""
        return None

    def score(self, trajectory: Trajectory, /) -> MaybeAwait[float | Reward | None]:
        """The total reward, asked once before close unless the episode failed or was aborted.

        Default: the sum of the rewards that steps gave; None, unscored, if none did.
        """
        return _sum(trajectory.step_rewards)

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
        if not action.calls:
            return StepResult(done=True)
        results = await gather(self._answer(call) for call in action.calls)
        return StepResult(
            [_tool_message(call, result) for call, result in zip(action.calls, results, strict=True)],
            reward=_sum([result.reward for result in results if result.reward is not None]),
            done=any(result.done for result in results),
        )

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Own a resource until this Env is closed, also when the caller is cancelled while it opens."""
        return await self._resources.enter_async_context(resource)

    async def call(self, hook: Callable[..., MaybeAwait[T]], *args: Any, timeout: float | None = None) -> T:
        """Run a hook as the episode does: `async def` on the loop, plain `def` in this Env's thread.

        Raises TimeoutError naming the hook after `timeout` seconds. A thread cannot be stopped: a plain `def` that
        outlives its deadline keeps this Env's thread until it returns.
        """
        name = getattr(hook, "__name__", str(hook))
        try:
            async with asyncio.timeout(timeout):
                blocking = not inspect.iscoroutinefunction(hook) and not _is_default(hook)
                result = await self._thread.run(hook, *args) if blocking else hook(*args)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as exc:
            if not exc.args and timeout is not None:
                raise TimeoutError(f"{type(self).__name__}.{name} took longer than {timeout:g} s") from exc
            raise

    # Called by the episode

    def begin(self, task: Task, limits: Limits) -> None:
        """Bind this Env to its only episode. Raises RuntimeError on a second one: Envs are single-use."""
        if hasattr(self, "task"):
            raise RuntimeError(f"{type(self).__name__} was used before; an Env is made anew for each episode")
        self.task, self.limits, self.rng = task, limits, Random(task.seed)

    async def end(self) -> None:
        """`close`, then the resources entered, newest first, then the thread; each also when another fails."""
        try:
            await self.call(self.close)
        finally:
            self._thread.stop()
            await self._resources.aclose()

    async def _answer(self, call: ToolCall) -> ToolResult:
        """A call's result, or its error as text for the model. InfraError passes: the world broke."""
        if call.error is not None:
            return ToolResult(f"Error: {call.error}")
        own = self._tools.get(call.name)
        timeout = own.timeout if own and own.timeout else self.limits.tool_s
        alone = self._alone if own and not own.parallel else contextlib.nullcontext()
        try:
            async with alone:
                result = await self.call(self.exec_tool, call, timeout=timeout)
        except ToolError as exc:
            if isinstance(exc, CallError):
                self.call_errors.append(ParseError("content", str(exc)))
            return ToolResult(f"Error: {exc}")
        except InfraError:
            raise
        except TimeoutError:
            return ToolResult(f"Error: {call.name} took longer than {timeout:g} s")
        except Exception as exc:  # noqa: BLE001 - the tool boundary: the model reads the error, and it is counted
            self._count_error(call, exc)
            return ToolResult(f"Error: {type(exc).__name__}: {exc}")
        return result if isinstance(result, ToolResult) else ToolResult(result)

    async def _exec_own_tool(self, call: ToolCall) -> ToolResult | JSON:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(spec["function"]["name"] for spec in self.tools())
            raise CallError(f"there is no tool {call.name!r}; the tools are: {known or 'none'}")
        method, arguments = getattr(self, tool.attribute), tool.validate(call.arguments)
        if inspect.iscoroutinefunction(method):
            return await method(**arguments)
        return await self._thread.run(method, **arguments)

    def _count_error(self, call: ToolCall, exc: Exception) -> None:
        kind = f"{call.name}:{type(exc).__name__}"
        self.tool_errors[kind] = self.tool_errors.get(kind, 0) + 1
        seen = (type(self), kind)
        if seen not in _logged:
            _logged.add(seen)
            log.warning(
                "tool %s of %s raised; the model reads the error. First one:",
                call.name,
                type(self).__name__,
                exc_info=exc,
            )


_logged: set[tuple[type, str]] = set()


async def close_env(env: Env) -> Exception | None:
    """Close an Env and wait for it, also while being cancelled. Its error is logged and returned, not raised."""
    try:
        await _uncancelled(asyncio.wait_for(env.end(), env.limits.close_s))
    except Exception as exc:  # the close boundary: the episode's result stands
        log.warning("closing %s failed", type(env).__name__, exc_info=exc)
        return exc
    return None


async def _uncancelled(awaitable: Awaitable[Any]) -> None:
    """Await to the end, holding back cancellation until then."""
    task, cancelled = asyncio.ensure_future(awaitable), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled() and (exc := task.exception()):
            log.warning("closing an Env failed", exc_info=exc)
        raise asyncio.CancelledError
    if task.cancelled():  # from within, as by a task that it cancelled and awaited: no news for the host
        raise InfraError("closing was cancelled from within")
    task.result()


class Envs:
    """An Env class with its configuration and what its episodes share.

        async with Envs("my_env.py:Capitals", {"corpus": "facts.jsonl"}) as envs:
            trajectory = await run_episode(envs.make(), task, engine=engine, renderer=renderer)

    `env` is a class, `file.py:Class` or `package.module:Class`. Raises ConfigError if it cannot be found, has neither
    tools nor a step, writes one of `snapshot` and `restore` without the other, or refuses its configuration.
    """

    def __init__(self, env: str | type[Env], config: Mapping[str, JSON] | None = None) -> None:
        self.cls = load_env(env) if isinstance(env, str) else env
        if not self.cls._tools and self.cls.step is Env.step and self.cls.tools is Env.tools:
            raise ConfigError(
                f"{self.cls.__name__} has neither tools nor a step: nothing could ever happen; "
                "add a method with @tool, or override step(action)"
            )
        if (self.cls.snapshot is Env.snapshot) != (self.cls.restore is Env.restore):
            raise ConfigError(f"{self.cls.__name__} writes one of snapshot and restore without the other; write both")
        self.config = _validated_config(self.cls, config)
        self.shared: Any = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        shared = self.cls.share(self.config)
        if inspect.isawaitable(shared):
            shared = await shared
        if isinstance(shared, AbstractAsyncContextManager):
            shared = await self._stack.enter_async_context(shared)
        self.shared = shared
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def make(self) -> Env:
        return self.cls(self.config, shared=self.shared)


def load_env(path: str) -> type[Env]:
    """The Env class at `file.py:Class` or `package.module:Class`. Raises ConfigError naming what is missing."""
    found = load_object(path, Env)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigError(f"{path} is {found!r}, not a subclass of agentrl.Env")
    return found


def _validated_config(cls: type[Env], config: BaseModel | Mapping[str, JSON] | None) -> Any:
    hint = get_type_hints(cls).get("config", Any)
    if not (isinstance(hint, type) and issubclass(hint, BaseModel)) or isinstance(config, hint):
        return {} if config is None else config
    try:
        return hint.model_validate(config or {})
    except ValidationError as exc:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'env_config'}: {e['msg'].lower()}" for e in exc.errors()
        )
        known = ", ".join(hint.model_fields)
        raise ConfigError(f"env_config of {cls.__name__}: {problems} (known keys: {known})") from exc


def _is_default(hook: Callable[..., Any]) -> bool:
    """Env's own hooks never block, so they need no thread."""
    return getattr(hook, "__func__", hook) is vars(Env).get(getattr(hook, "__name__", ""))


def _sum(rewards: Sequence[float]) -> float | None:
    return sum(rewards) if rewards else None


def _tool_message(call: ToolCall, result: ToolResult) -> Message:
    content = result.content if isinstance(result.content, str) else json.dumps(result.content, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
