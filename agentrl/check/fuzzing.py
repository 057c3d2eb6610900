"""Play everything that a model may write: calls with odd and wrong arguments, unknown tools, text of any length."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentrl._util.findings import Place
from agentrl.blame import is_the_worlds
from agentrl.check.arguments import LONG, Try, tries
from agentrl.check.places import AuthorCode
from agentrl.check.playing import EnvUnderTest, PlayedEpisode, Speech, play
from agentrl.check.scoring import in_range
from agentrl.check.sizes import sizes
from agentrl.engine.scripted import Turn
from agentrl.env.env import Env, runtime, tools_of
from agentrl.errors import BadCallPolicy, InfraError, ToolError, leaves, one_line
from agentrl.testing import call
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Task, ToolCall, ToolResult, ToolSpec

_CHECK = "robustness"
_PLAYS = 12
_TURNS = 40
_TEXTS = ("", "\n", "I do not know.", "<tool_call>", "</search></answer>", "{}", "é 漢字 \u202e", LONG)


async def fuzzing(subject: EnvUnderTest, task: Task, tools: Sequence[ToolSpec], seed: int = 0) -> str:
    """Play in random order until everything has been tried. Returns the number of tries, in words."""
    rng = Random(seed)
    turns: list[Turn] = [
        _call(attempt) for spec in tools for attempt in tries(spec, rng, fitting=3 if subject.slow else 8)
    ]
    turns += [call("no_such_tool", query="x"), *_TEXTS] if tools else [*_TEXTS]
    waiting, watched = deque(turns), _Watched(subject)
    for _ in range(_PLAYS):
        if not waiting:
            break
        before = len(waiting)
        episode = await play(
            subject, task, lambda task, trajectory: _speech(waiting), turns=_TURNS, prepare=watched.attach
        )
        sizes(subject, episode)
        in_range(subject, episode, "calls by chance")
        _broke(subject, episode)
        if len(waiting) == before:
            break
    watched.report()
    return f"{len(turns) - len(waiting)} of {len(turns)} turns played"


def _call(attempt: Try) -> Turn:
    return call(attempt.tool, **attempt.arguments)


def _speech(waiting: deque[Turn]) -> Speech:
    while waiting:
        yield waiting.popleft()
    while True:
        yield "That is all."


def _broke(subject: EnvUnderTest, episode: PlayedEpisode) -> None:
    """Report a hook that raised because of the model's turn."""
    failure = episode.failure
    if failure is None or failure.boundary in ("engine", "render"):
        return
    place = subject.place_of(failure)
    if failure.kind == "bug":
        message = f"{failure.boundary} fails for a turn that a model may write: {failure.error}"
        subject.report.error(_CHECK, place, message, "answer it, or raise ToolError, which the model reads")
        return
    message = f"{failure.boundary} raises InfraError for a turn that a model may write: {failure.error}"
    subject.report.error(
        _CHECK, place, message, "raise ToolError for a mistake of the model's: an InfraError masks the episode"
    )


class _Watched:
    """Records the errors and results of an Env's tools."""

    def __init__(self, subject: EnvUnderTest) -> None:
        self._subject = subject
        self._raised: list[tuple[ToolCall, Exception]] = []
        self._odd: list[tuple[ToolCall, str]] = []

    def attach(self, env: Env) -> None:
        if env.bad_calls is not None:
            env.bad_calls = BadCallPolicy(in_a_row=10**6)  # type: ignore[misc]  # for this Env only
        original, env_runtime = env.exec_tool, runtime(env)

        async def exec_tool(call: ToolCall) -> ToolResult | JSON:
            try:
                result = await env_runtime.call(original, call)
            except ToolError:
                raise
            except Exception as exc:
                self._raised.append((call, exc))
                raise
            if (problem := _odd(result)) is not None:
                self._odd.append((call, problem))
            return result

        setattr(env, "exec_tool", exec_tool)  # noqa: B010 - a method is replaced

    def report(self) -> None:
        report, author = self._subject.report, self._subject.author
        for call_, problem in self._odd:
            report.error(
                "schemas",
                self._of_tool(call_),
                f"tool {call_.name} returned {problem}, which JSON cannot hold",
                "return text, numbers, lists or dicts",
            )
        for call_, exc in self._raised:
            if any(isinstance(leaf, InfraError) for leaf in leaves(exc)):
                self._infra(call_, exc)
                continue
            place = author.of_error(exc) or self._of_tool(call_)
            message = f"tool {call_.name} raises {one_line(exc)[:120]} for {_shown(call_.arguments)}"
            world = is_the_worlds(exc)
            remedy = "raise ToolError for the model's mistakes" + (
                ", InfraError if the environment itself failed" if world else ""
            )
            report.error(_CHECK, place, message, remedy)

    def _infra(self, call_: ToolCall, exc: Exception) -> None:
        """Report an InfraError in place of a bug, or an InfraError caused by the model's input."""
        cause = exc.__cause__ or exc.__context__
        if cause is None or is_the_worlds(cause):
            return  # the failure of the episode reports it, if it has one
        self._subject.report.error(
            _CHECK,
            self._subject.author.of_error(exc) or self._of_tool(call_),
            f"tool {call_.name} raises InfraError, but the cause is {one_line(cause)[:80]}: {_shown(call_.arguments)}",
            "raise InfraError only if the environment failed, ToolError for the model's mistakes",
        )

    def _of_tool(self, call_: ToolCall) -> Place:
        return place_of_tool(self._subject.author, call_.name)


def place_of_tool(author: AuthorCode, name: str) -> Place:
    """The line of a tool's method, else of the hook that offers the tool."""
    tools = tools_of(author.cls)
    return author.of_member(tools[name].attribute) if name in tools else author.of_member("tools", "exec_tool")


def _odd(result: Any) -> str | None:
    content = result.content if isinstance(result, ToolResult) else result
    try:
        json.dumps(content)
    except (TypeError, ValueError, RecursionError):
        return type(content).__name__
    return None


def _shown(arguments: Mapping[str, JSON]) -> str:
    text = ", ".join(f"{key}={value!r:.40}" for key, value in arguments.items())
    return text[:100] or "no arguments"


def explored(trajectory: Trajectory) -> list[Turn]:
    """A script of plain calls: each tool once, then each tool again in reverse order."""
    rng = Random(0)
    plain = [_call(next(tries(spec, rng, fitting=1))) for spec in trajectory.tools[:6]]
    return [*plain, *reversed(plain), *plain[:1]] if plain else ["Hello.", "What now?", "42"]
