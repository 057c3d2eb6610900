"""Env: the base class of multi-turn environments."""

from __future__ import annotations

import asyncio
import inspect
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from random import Random
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel

from agentrl._util.content import content
from agentrl.env.config import validated_config
from agentrl.env.runtime import Runtime
from agentrl.env.summaries import REQUEST, first_prompt_and
from agentrl.env.tool_calls import exec_own_tool, run_calls
from agentrl.env.tools import Tool, collect_tools, is_tool, normal_spec, tool_name
from agentrl.errors import BadCallPolicy, ConfigError
from agentrl.plain import copied, to_json
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
    from agentrl.render.base import Renderer
    from agentrl.trajectory.trajectory import Trajectory

T = TypeVar("T")
log = logging.getLogger("agentrl")

_HOOKS = frozenset(
    {
        *(
            "share",
            "needs",
            "missing_for",
            "tasks",
            "tools",
            "reset",
            "observe",
            "step",
            "exec_tool",
            "last_turn",
            "ask_summary",
            "after_summary",
            "score",
            "close",
            "snapshot",
            "restore",
        ),
        "run_tools",
    }
)
"""Methods that a subclass may override."""
_SETTINGS: Mapping[str, UnionType | type] = {
    "turn_options": TurnOptions,
    "bad_calls": BadCallPolicy | None,
    "deterministic": bool,
    "seats": tuple | list,
}
_KEPT: Mapping[str, str] = {
    "config": "env_config fills it in: annotate it, without a value (`config: MyConfig`)",
    "shared": "what `share` makes is put there: annotate it, without a value",
    "task": "the episode's Task is put there",
    "rng": "the episode's random numbers are put there",
    "seat": "the seat that acts is put there",
    "enter": "hooks own resources by it",
    "call": "hooks call blocking functions by it",
}
"""Attributes and methods that a subclass must not define -> the reason."""


class Env:
    """An environment for one episode: agentrl makes the Env, resets it once, steps through the turns, and closes it.

    Write `@tool` methods and `score`. Override `reset` or `step` if the defaults do not fit. A hook may be `def` or
    `async def`. A plain `def` runs in a thread of this Env, so it may block. Hooks can use:

    - `self.config`: the Env's own copy of the configuration; annotate it with a pydantic model to have it validated
    - `self.shared`: the result of `share`, the same object for all episodes
    - `self.task`: this episode's own copy of the Task, from `reset` on
    - `self.rng`: random numbers of this Env, seeded by `task.seed`
    - `self.seat`: with `seats`, the seat that acts, or the seat for which `tools` or `score` is called
    """

    config: Any
    shared: Any
    task: Task
    rng: Random
    seat: str
    seats: ClassVar[Sequence[str]] = ()
    """Names of the players of a game, such as ("x", "o"). Each player has a conversation, limits and a reward.
    `observe` then returns the observation for a seat, and `StepResult.next_seat` names the next player. Empty: a single
    player without a name."""
    turn_options: ClassVar[TurnOptions] = TurnOptions()
    """Stop strings and token budget of each turn."""
    bad_calls: ClassVar[BadCallPolicy | None] = BadCallPolicy()
    """The treatment of wrong tool calls. With a policy, agentrl answers unreadable calls, and `step` never sees them. A
    turn that has only unreadable calls does not reach `step` at all. With None, or without tools, `step` sees all
    calls."""
    deterministic: ClassVar[bool] = False
    """Whether the same actions always lead to the same observations and rewards, and can be repeated without harm. An
    aborted episode may then resume in a fresh Env, which executes the recorded actions again. An Env with a `snapshot`
    does not need the flag."""
    reward_range: ClassVar[tuple[float, float] | None] = None
    """The lowest and the highest reward of an episode. `agentrl check` plays an episode with the correct answers, and
    expects the highest reward. None: rewards are between -1 and 1, and correct answers get 1."""
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
        """Make an object for all episodes, such as an index or a pool. Called once for each process and event loop.

        An async context manager is entered, and exited at the end. An awaitable is awaited.
        """
        return None

    @classmethod
    def needs(cls, config: Any, episodes: int, /) -> Sequence[str]:
        """A machine's requirements for playing a number of episodes at a time, a requirement a line: "a retriever at
        port 8000".

        `agentrl check slime` prints the lines. The method should start no process. Default: no needs.
        """
        return ()

    @classmethod
    def missing_for(cls, config: Any, tasks: Iterable[Task], /) -> Sequence[str]:
        """The missing parts for playing the tasks, an item a line: "3 of 200 images are missing".

        Called before a training run, which logs the lines, perhaps within an event loop. Default: no missing parts.
        """
        return ()

    @classmethod
    def tasks(cls, config: Any, split: Literal["train", "eval"], /) -> Iterable[Task]:
        """The Env's own tasks, for a run without a data file. Each call must yield the same tasks in the same order.
        The tasks may be endless.

        Tasks for train and for eval must differ. A task without an id is named by its number, a task without a seed (or
        with seed 0) gets a seed from the id. Default: none.
        """
        return ()

    def tools(self) -> MaybeAwait[Sequence[ToolSpec]]:
        """The tools of this episode; called once after reset. Default: the @tool methods, then the task's tools."""
        return _declared_specs(type(self), self.task)

    def reset(self, task: Task, /) -> MaybeAwait[Observation]:
        """The first observation. Default: the task's prompt."""
        return task.prompt

    def observe(self, seat: str, /) -> MaybeAwait[Observation]:
        """With `seats`: the observation for a seat at the start of its turn. In the seat's first turn the result of
        `reset`, which may be empty, precedes the observation. The first of `seats` begins, unless `reset` sets
        `self.seat`."""
        raise NotImplementedError(f"{type(self).__name__} has seats and no observe(seat)")

    def step(self, action: Action, /) -> MaybeAwait[StepResult]:
        """Respond to one turn of the model. Default: `run_tools`."""
        return self.run_tools(action)

    def exec_tool(self, call: ToolCall, /) -> MaybeAwait[ToolResult | JSON]:
        """Execute a tool call. Default: validate the arguments, and call the @tool method with the call's name.

        Raise ToolError to show the model an error, CallError if the call is to blame, InfraError if the environment
        broke.
        """
        return exec_own_tool(self, call)

    def last_turn(self, reason: StopReason, /) -> MaybeAwait[Observation | None]:
        """Called when `Limits.turns` is reached. Return an observation to allow exactly one more turn, for example for
        a forced answer. The observation is appended to the observation of the latest step, and `step` is called for the
        last turn too. Default: None; the episode ends."""
        return None

    def ask_summary(self, trajectory: Trajectory, /) -> MaybeAwait[str]:
        """Called before the next turn if the conversation has at least `Limits.compact_at` tokens. Return the request
        for a summary, which is appended to the observation, or "" to go on without a summary. Default: agentrl's
        request."""
        return REQUEST

    def after_summary(self, trajectory: Trajectory, summary: str, /) -> MaybeAwait[Observation]:
        """The first observation after a summary, in place of all earlier messages. `summary` is the text of the model's
        turn, without thoughts. Calls in the turn are not executed. Default: the first prompt and the summary."""
        return first_prompt_and(summary, trajectory)

    def score(self, trajectory: Trajectory, /) -> MaybeAwait[float | Reward | None]:
        """The total reward. Called once before `close`, unless the episode failed, was aborted or has no turn. With
        `seats`, `score` is called once for each seat.

        Default: the sum of the steps' rewards, or None (unscored) if no step gave a reward.
        """
        return sum(trajectory.step_rewards) if trajectory.step_rewards else None

    def close(self) -> MaybeAwait[None]:
        """Clean up. Always called, even if reset was cancelled half-way. Rarely needed: see `enter`."""
        return None

    def snapshot(self) -> MaybeAwait[Any]:
        """The state of an aborted episode, as an object for pickle. This Env is closed afterwards.

        With `snapshot` and `restore`, an episode can resume in another Env, even in another process. An Env without
        both is replayed if `deterministic`, and otherwise stays open for a bounded time.
        """
        raise NotImplementedError(f"{type(self).__name__} writes no snapshot")

    def restore(self, state: Any, /) -> MaybeAwait[None]:
        """Called on a fresh Env instead of `reset`, with the result of `snapshot`.

        `self.task` and `self.rng` are as before. Enter resources again.
        """
        raise NotImplementedError(f"{type(self).__name__} restores no snapshot")

    # Overridden for agents: see `agentrl.gateway.agent`

    async def _agentrl_play(self, episode: Any, seconds: float | None, /) -> StopReason:
        """Play the rest of an `agentrl.episode.run.Episode` within `seconds`. Return the reason to stop."""
        stop: StopReason = await episode.take_turns(seconds)
        return stop

    def _agentrl_read(self, answer: str | None, /) -> str | None:
        """The text that the model reads before its next turn. `answer` is the Env's last observation as text."""
        return answer

    @classmethod
    def _agentrl_check(cls) -> None:
        """Raises ConfigError if the class cannot play an episode."""
        _check_seats(cls)
        if not cls._agentrl_tools and (cls.step, cls.tools, cls.exec_tool, cls.score) == _DEFAULTS:
            raise ConfigError(
                f"{cls.__name__} has neither tools nor a step nor a score: nothing could happen; "
                "add a method with @tool, override step(action), or score the model's only turn"
            )

    @classmethod
    def _agentrl_prove(cls, renderer: Renderer, /) -> None:
        """Raises TemplateError before the first episode if the template cannot carry the class's messages."""
        if tools := [tool.spec for tool in cls._agentrl_tools.values()]:
            renderer.bind(tools)

    # For hooks to use

    async def run_tools(self, action: Action) -> StepResult:
        """Execute the action's calls concurrently, and answer in order. Without calls, the episode is done."""
        return await run_calls(self, action.calls) if action.calls else StepResult(done=True)

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Open a resource. The Env's end closes the resource, even if the caller is cancelled during the opening."""
        return await self._agentrl.enter(resource)

    async def call(self, function: Callable[..., MaybeAwait[T]], *args: Any, timeout: float | None = None) -> T:
        """Call a function: a plain `def` in this Env's thread, where blocking is allowed; an `async def` in this task.

        The thread runs one function at a time. Raises TimeoutError after `timeout` seconds, not counting the wait for
        the thread. A thread cannot be stopped: a function beyond the deadline occupies the thread until the function
        returns.
        """
        return await self._agentrl.call(function, *args, timeout=timeout)


_OWN = frozenset(member for member in vars(Env).values() if inspect.isfunction(member))
"""The default hooks. Default hooks never block and open no resource, and so need no thread or task."""
_DEFAULTS = (Env.step, Env.tools, Env.exec_tool, Env.score)


def runtime(env: Env) -> Runtime:
    """The `Runtime` of an Env, through which an episode calls the Env's hooks."""
    return env._agentrl


def tools_of(env: type[Env] | Env) -> Mapping[str, Tool]:
    """The @tool methods of an Env, by the model's name for the tool. Each `Tool` has a `spec` and an `attribute`.

    An Env can offer more tools in `tools`, and a task can bring tools.
    """
    return env._agentrl_tools


def tool_specs(env: type[Env] | Env, task: Task | None = None) -> list[ToolSpec]:
    """The tools that an episode of `task` will offer, in the order of the prompt: the @tool methods, then the task's
    own.

    For a program that needs the tools before the episode, such as another trainer's. Raises ConfigError for a class
    that overrides `tools`, because only the episode knows the tools of such a class.
    """
    cls = env if isinstance(env, type) else type(env)
    if cls.tools is not Env.tools:
        raise ConfigError(
            f"{cls.__name__}.tools decides in each episode which tools there are: read them after reset, in "
            "Trajectory.tools"
        )
    return _declared_specs(cls, task or Task())


def _declared_specs(cls: type[Env], task: Task) -> list[ToolSpec]:
    declared = (copied(tool.spec, f"the schema of {tool.name}") for tool in tools_of(cls).values())
    return [*declared, *map(normal_spec, task.tools)]


def is_agent(cls: type[Env]) -> bool:
    """Whether the class is an AgentEnv, whose agent takes the turns and executes the tools by itself."""
    return cls._agentrl_play is not Env._agentrl_play


def own_task(task: Task) -> Task:
    """A copy of the task for one episode, which the Env may change. Raises ConfigError if the task cannot be copied."""
    try:
        episode_task = copied(task, f"task {task.id or task.prompt!r:.80}")
    except TypeError as exc:
        raise ConfigError(str(exc)) from exc
    if episode_task.seed is None:
        named = episode_task.id or content(
            (episode_task.prompt, episode_task.label, episode_task.metadata, episode_task.tools)
        )
        return replace(episode_task, seed=zlib.crc32(named.encode(errors="surrogatepass")))
    return episode_task


def begin_env(env: Env, task: Task, limits: Limits) -> None:
    """Bind an Env to its episode. Raises RuntimeError the second time: Envs are single-use."""
    if hasattr(env, "task"):
        raise RuntimeError(f"{type(env).__name__} was used before; make a new Env for each episode")
    env.task, env._agentrl.limits = task, limits
    env.rng = env._agentrl.rng = Random(task.seed)


async def offered_tools(env: Env) -> Sequence[ToolSpec]:
    """The tools that the model may call in this episode, as plain data. Raises ConfigError for a tool that the Env
    cannot execute."""
    specs = await env._agentrl.hook(env.tools, timeout=env._agentrl.limits.reset_s)
    offered = tuple(map(normal_spec, specs))
    refuse_unknown(type(env), offered)
    env._agentrl.offered = tuple(map(tool_name, offered))
    tools: list[ToolSpec] = to_json(offered, f"{type(env).__name__}.tools")
    return tools


def refuse_unknown(cls: type[Env], offered: Iterable[ToolSpec]) -> None:
    """Raises ConfigError for a tool that the class cannot execute."""
    unknown = [name for name in map(tool_name, offered) if name not in cls._agentrl_tools]
    if unknown and cls.exec_tool is Env.exec_tool and cls.step is Env.step:
        raise ConfigError(
            f"{cls.__name__} cannot execute the tool {unknown[0]!r} that it offers; "
            "write exec_tool(call), or a @tool method of that name"
        )


async def close_env(env: Env) -> Exception | None:
    """Close an Env and wait for the end, even while being cancelled. An error is logged and returned, not raised."""
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


def _refuse_names(cls: type[Env]) -> None:
    """Raises ConfigError if the class defines one of agentrl's names."""
    for name, value in vars(cls).items():
        if is_tool(value) and (name in _HOOKS or name in _KEPT or name in _SETTINGS):
            raise ConfigError(
                f"{cls.__name__}: a tool method named {name!r} hides Env.{name}; "
                f"give it another name, and @tool(name={name!r}) for the model"
            )
        if name in _KEPT:
            raise ConfigError(f"{cls.__name__}.{name} hides Env.{name}: {_KEPT[name]}; choose another name")
        if name in _HOOKS:
            _refuse_hook(cls, name, value)
        if name in _SETTINGS and not isinstance(value, _SETTINGS[name] | property):
            raise ConfigError(f"{cls.__name__}.{name} is {value!r}; it must be {_kind(name)}")


def _refuse_hook(cls: type[Env], name: str, value: object) -> None:
    if not callable(value) and not isinstance(value, staticmethod | classmethod):
        raise ConfigError(f"{cls.__name__}.{name} is {value!r}, but Env.{name} is a hook; choose another name")
    if name in ("share", "tasks") and inspect.isfunction(value):
        raise ConfigError(f"{cls.__name__}.{name} is called on the class: write @classmethod above it")


def _check_seats(cls: type[Env]) -> None:
    seats = tuple(cls.seats)
    if not seats:
        return
    if len(set(seats)) < len(seats) or len(seats) < 2 or not all(isinstance(seat, str) and seat for seat in seats):
        raise ConfigError(f"{cls.__name__}.seats is {cls.seats!r}; give two or more different names")
    if cls.observe is Env.observe:
        raise ConfigError(f"{cls.__name__} has seats; write observe(seat), which returns what a seat reads")
    if is_agent(cls):
        raise ConfigError(f"{cls.__name__} is an agent, which has no seats")


def _kind(setting: str) -> str:
    return getattr(_SETTINGS[setting], "__name__", str(_SETTINGS[setting]))
