"""The first observation must show the model its task, but not the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.check.playing import EnvUnderTest, PlayedEpisode
from agentrl.env.env import Env, runtime
from agentrl.types import Task

_CHECK = "prompt"
_READ: dict[int, set[str]] = {}


class WatchedTask(Task):
    """A task that knows which of its fields were read."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in ("prompt", "label", "metadata", "tools", "seed", "id", "split"):
            _READ.setdefault(id(self), set()).add(name)
        return super().__getattribute__(name)


def watched(task: Task) -> WatchedTask:
    fields = {name: getattr(task, name) for name in ("prompt", "label", "metadata", "tools", "seed", "id", "split")}
    return WatchedTask(**fields)


class ResetReads:
    """Whether `reset` looks at its task, or at its random numbers."""

    def __init__(self) -> None:
        self.anything = False

    def attach(self, env: Env) -> None:
        env_runtime = runtime(env)
        hook = env_runtime.hook

        async def watching(called: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(called, "__name__", "") != "reset":
                return await hook(called, *args, **kwargs)
            before = _READ.pop(id(env.task), None), env_runtime.rng.getstate()
            try:
                return await hook(called, *args, **kwargs)
            finally:
                read = _READ.pop(id(env.task), set())
                self.anything = self.anything or bool(read) or env_runtime.rng.getstate() != before[1]

        env_runtime.hook = watching  # type: ignore[method-assign, assignment]


def prompts(subject: EnvUnderTest, plays: Sequence[PlayedEpisode], reads: ResetReads) -> None:
    """Findings about the first observations of several tasks."""
    if not subject.is_agent:
        _ignored(subject, plays, reads)
    _label_shown(subject, plays)


def _ignored(subject: EnvUnderTest, plays: Sequence[PlayedEpisode], reads: ResetReads) -> None:
    first = [episode.first() for episode in plays]
    tasks = [(p.trajectory.task.prompt, p.trajectory.task.label, p.trajectory.task.metadata) for p in plays]
    differ = any(task != tasks[0] for task in tasks)
    if len(plays) > 1 and differ and not reads.anything and all(observation == first[0] for observation in first):
        subject.report.error(
            _CHECK,
            subject.author.of_member("reset"),
            f"reset ignores its task: {len(plays)} tasks begin with the same observation",
            "show the task's prompt, or what follows from task.metadata or self.rng",
        )


def _label_shown(subject: EnvUnderTest, plays: Sequence[PlayedEpisode]) -> None:
    """Report if each prompt contains its own label, and not those of the other tasks."""
    prompts_and_labels = [(_prompt(episode), _labels(episode.trajectory.task.label)) for episode in plays]
    if (
        len(prompts_and_labels) < 2
        or not all(labels for _, labels in prompts_and_labels)
        or len({tuple(labels) for _, labels in prompts_and_labels}) < 2
    ):
        subject.report.skipped.setdefault("label in prompt", "it needs two tasks with different labels that are text")
        return
    holds_own = all(any(_holds(prompt, label) for label in labels) for prompt, labels in prompts_and_labels)
    foreign = any(
        _holds(prompt, label)
        for i, (prompt, mine) in enumerate(prompts_and_labels)
        for j, (_, labels) in enumerate(prompts_and_labels)
        for label in labels
        if i != j and label not in mine
    )
    if holds_own and not foreign:
        subject.report.warn(
            _CHECK,
            subject.author.of_member("reset"),
            f"each of {len(plays)} prompts holds its own label, such as {prompts_and_labels[0][1][0]!r:.40}",
            "leave it out, unless the task is to find it there",
        )


def _labels(label: Any) -> list[str]:
    if isinstance(label, bool):
        return []
    if isinstance(label, str | int | float):
        return [str(label).strip()] if str(label).strip() else []
    return [text for item in label for text in _labels(item)] if isinstance(label, list | tuple) else []


def _prompt(episode: PlayedEpisode) -> str:
    return "\n".join(episode.first()[:-1])


def _holds(prompt: str, label: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", prompt, re.IGNORECASE) is not None
