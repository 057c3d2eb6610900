"""Plays an episode with a script in place of the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from itertools import takewhile
from typing import Any, TypeGuard

from agentrl._util.loading import cause
from agentrl._util.texts import texts_in
from agentrl.chat.client import Say, ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.engine.base import Engine
from agentrl.engine.scripted import Script, ScriptedEngine, Turn
from agentrl.env.env import Env, runtime
from agentrl.env.tool_calls import new_call
from agentrl.episode.options import EpisodeHooks, EpisodeOptions, RewardFn, SpecialTokens
from agentrl.episode.run import run_episode
from agentrl.render.base import Renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Limits, Message, Task

_LONG = 400
"""The most characters of an observation in a default summary."""


def call(name: str, /, **arguments: JSON) -> Message:
    """An assistant message with a single tool call. The id of the call, nine letters and digits, depends only on name
    and arguments."""
    return {"role": "assistant", "content": "", "tool_calls": [new_call(name, arguments)]}


async def rollout(
    env: Env,
    task: Task,
    turns: Sequence[Turn] | Generator[Turn, str, None] | Script | Say,
    *,
    renderer: Renderer | None = None,
    limits: Limits | None = None,
    special_tokens: SpecialTokens = "keep",
    reward: RewardFn | None = None,
    raise_tool_errors: bool = True,
    summary: Callable[[Trajectory], str] | None = None,
) -> Trajectory:
    """Play an episode of `env` with `turns` as the model's turns: a list, or a *player*.

    A player is a generator or a function of messages and tools. Each `yield` of a generator returns the Env's messages
    as text: their contents, joined by line breaks. A function is called for each turn, with the whole conversation,
    including the prompt. So a function can play an agent with conversations of several kinds.

    `renderer` defaults to the `tiny` model's tokenizer and template. `reward` replaces `Env.score`. `special_tokens`
    has the meaning of `EpisodeOptions.special_tokens`. A failure of the environment is recorded in the trajectory, as
    in a run. Raises AssertionError if the script fails or runs out of turns. An exception of a tool other than
    ToolError or InfraError raises AssertionError, too, although in a run the model would read the error. To test the
    behaviour of a run, pass `raise_tool_errors=False`.

    With `limits.compact_at`, a list and a function play the summaries, too. For a generator `summary` writes them; the
    default repeats the last observation.
    """
    if inspect.isgeneratorfunction(turns):
        name = turns.__name__
        raise TypeError(f"rollout: {name} is a function; call it with the task: {name}(task)")
    renderer = renderer or tiny_renderer()
    answered = LastAnswer(env, summary)
    if isinstance(turns, Generator):
        turns = answered.with_summaries(turns)
    engine: Engine
    if callable(turns) and reads_messages(turns):
        engine = ChatEngine(ScriptedSpeaker(turns), renderer, by={"model": getattr(turns, "__name__", "a function")})
    else:
        engine = ScriptedEngine(turns, renderer, reads=answered.read)  # type: ignore[arg-type]
    options = EpisodeOptions(limits=limits or Limits(), special_tokens=special_tokens)
    hooks = EpisodeHooks(on_turn=answered.note)
    trajectory = await run_episode(
        env, task, engine=engine, renderer=renderer, options=options, reward=reward, hooks=hooks
    )
    failure = trajectory.failure
    if failure is not None and (failure.kind, failure.boundary) == ("bug", "engine"):
        raise AssertionError(f"the script failed: {failure.error}\n{failure.traceback}")
    error = runtime(env).first_tool_error
    if error is not None and raise_tool_errors:
        raise AssertionError(f"a tool of {type(env).__name__} raised {cause(error)}") from error
    return trajectory


def reads_messages(player: Callable[..., Any]) -> TypeGuard[Say]:
    """Whether a player is a function of two arguments, messages and tools. Other functions have a single argument, the
    input ids."""
    try:
        inspect.signature(player).bind(None, None)
    except (TypeError, ValueError):
        return False
    return not takes_one_argument(player)


def takes_one_argument(function: Callable[..., Any]) -> bool:
    """Whether a call with one argument is possible. A function without a known signature is taken to allow it."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


class LastAnswer:
    """The text of the Env's last messages, without the template's markup."""

    def __init__(self, env: Env, summary: Callable[[Trajectory], str] | None = None) -> None:
        self._env = env
        self._text: str | None = None
        self._summary = summary
        self._trajectory: Trajectory | None = None

    def with_summaries(self, turns: Generator[Turn, str, None]) -> Generator[Turn, str, None]:
        """The turns of a generator, and a summary where the Env asks for one. The generator never reads the request."""
        read, has_begun = self._text or "", False
        try:
            while True:
                if self._trajectory is not None and (request := self._trajectory.segment.request):
                    read = read.rpartition(request)[0].rstrip()
                    yield self._summary(self._trajectory) if self._summary else f"The last observation: {read[-_LONG:]}"
                turn = turns.send(read) if has_begun else next(turns)
                has_begun = True
                read = yield turn
        except StopIteration:
            return
        finally:
            turns.close()

    def note(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        answer = [*takewhile(lambda message: message["role"] != "assistant", reversed(trajectory.messages))]
        self._text = "\n".join("".join(texts_in(m["content"])) for m in reversed(answer)) if answer else None

    def read(self) -> str | None:
        """The text; None if the model's turn continues as raw text."""
        return self._env._agentrl_read(self._text)


def tiny_renderer() -> Renderer:
    """The renderer of the bundled `tiny` model."""
    from agentrl.models import load_tokenizer  # transformers takes seconds to import
    from agentrl.render import load_renderer

    return load_renderer(load_tokenizer("tiny"))
