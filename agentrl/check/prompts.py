"""The first observation must show the model its task, but not the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.check.playing import EnvUnderTest, PlayedEpisode
from agentrl.env.env import Env, runtime
from agentrl.types import Task

_CHECK = "prompt"
_LEAST = 2
_ANSWERS = ("ground_truth", "target", "targets", "answer", "answers", "label")
"""Keys under which a label that is a JSON object has the answer. Values under other keys may be in a prompt."""
_READ: dict[int, set[str]] = {}


class WatchedTask(Task):
    """A task that records which fields were read."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in ("prompt", "label", "metadata", "tools", "seed", "id", "split"):
            _READ.setdefault(id(self), set()).add(name)
        return super().__getattribute__(name)


def watched(task: Task) -> WatchedTask:
    fields = {name: getattr(task, name) for name in ("prompt", "label", "metadata", "tools", "seed", "id", "split")}
    return WatchedTask(**fields)


class ResetReads:
    """Records whether `reset` reads the task, and whether `reset` draws random numbers."""

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


def prompts(
    subject: EnvUnderTest, plays: Sequence[PlayedEpisode], reads: ResetReads, others: Sequence[PlayedEpisode] = ()
) -> None:
    """Report mistakes in the first observations of several tasks. `others` are searched for labels only."""
    if not subject.is_agent:
        _ignored(subject, plays, reads)
    _label_shown(subject, [*plays, *others])


def for_labels(tasks: Sequence[Task], most: int = 16) -> list[Task]:
    """At most `most` tasks whose prompts are searched for labels: from all parts of the data, different labels
    first."""
    spread = tasks[:: max(1, len(tasks) // (4 * most))]
    first: dict[tuple[str, ...], Task] = {}
    for task in spread:
        if labels := tuple(_labels(task.label)):
            first.setdefault(labels, task)
    new = [*first.values()]
    rest = [task for task in spread if all(task is not other for other in new)]
    chosen = new[:: max(1, len(new) // most)][:most]
    return [*chosen, *rest[: most - len(chosen)]]


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
    """Report if at least a third of the prompts contain the task's label and no label of another task."""
    searched = [(_prompt(episode), _labels(episode.trajectory.task.label)) for episode in plays]
    searched = [(prompt, labels) for prompt, labels in searched if labels]
    if len({tuple(labels) for _, labels in searched}) < 2:
        if "label in prompt" not in subject.report.skipped:
            subject.report.skip(
                "label in prompt",
                "it needs two tasks with different labels that are text; an Env without such labels is fine",
            )
        return
    leaked = [label for prompt, labels in searched if (label := _first_held(prompt, labels)) is not None]
    subject.report.checked["label in prompt"] = f"{len(searched)} tasks"
    if len(leaked) >= max(_LEAST, len(searched) / 3) and not _holds_foreign(searched):
        count = "each" if len(leaked) == len(searched) else len(leaked)
        subject.report.warn(
            _CHECK,
            subject.author.of_member("reset"),
            f"{count} of {len(searched)} prompts holds its own label, such as {leaked[0]!r:.40}",
            "leave it out, unless the task is to find it there",
        )


def _first_held(prompt: str, labels: Sequence[str]) -> str | None:
    return next((label for label in labels if _holds(prompt, label)), None)


def _holds_foreign(searched: Sequence[tuple[str, Sequence[str]]]) -> bool:
    """Whether a prompt contains a label that belongs to other tasks only."""
    labels = {label for _, of_task in searched for label in of_task}
    return any(_first_held(prompt, sorted(labels.difference(mine))) is not None for prompt, mine in searched)


def _labels(label: Any) -> list[str]:
    if isinstance(label, bool):
        return []
    if isinstance(label, str | int | float):
        return [str(label).strip()] if str(label).strip() else []
    if isinstance(label, Mapping):
        label = [label[key] for key in _ANSWERS if key in label]
    return [text for item in label for text in _labels(item)] if isinstance(label, list | tuple) else []


def _prompt(episode: PlayedEpisode) -> str:
    return "\n".join(episode.first()[:-1])


def _holds(prompt: str, label: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", prompt, re.IGNORECASE) is not None
