"""Tasks that an Env generates, checked as strictly as the rows of a data file."""

from __future__ import annotations

import inspect
import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Literal, TypeAlias

from agentrl._util.loading import cause, definition
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError
from agentrl.plain import to_json
from agentrl.types import JSON, Raw, Task

log = logging.getLogger("agentrl")

Split: TypeAlias = Literal["train", "eval"]
Check: TypeAlias = Callable[[Task], None]

DEFAULT_EPISODES = {"train": 1000, "eval": 200}
"""Split -> the number of tasks taken from a generator, which may be endless, if the configuration has no number. A list
of tasks is taken whole."""

PATIENCE_S = 10.0
"""The seconds that `Env.tasks` may take without a warning."""


def makes_tasks(cls: type[Env]) -> bool:
    """Whether the Env generates its own tasks."""
    return inspect.getattr_static(cls, "tasks") is not inspect.getattr_static(Env, "tasks")


def own_tasks(envs: EnvFactory, split: Split, *, most: int | None = None, check: Check | None = None) -> list[Task]:
    """The first `most` of the Env's own tasks, or all tasks if the Env has fewer. No further tasks of a generator are
    drawn.

    Raises ConfigError for an item that is not a Task, for a repeated id, for an error of `Env.tasks` or of `check`, and
    for held-out tasks that are also training tasks.
    """
    tasks = list(_filled_in(envs, split, most))
    where = f"{envs.cls.__name__}.tasks for {split}"
    numbers: dict[str, int] = {}
    for number, task in enumerate(tasks, 1):
        if (first := numbers.setdefault(task.id, number)) != number:
            raise ConfigError(f"{where}: tasks {first} and {number} have the same id, {task.id!r}; leave ids out")
        _check(task, f"{where}: task {number}", (envs.check, check))
    if split == "eval":
        _refuse_the_same(envs)
    return tasks


def row_of(task: Task) -> dict[str, JSON]:
    """A task as a row of a data file. If a data file cannot hold the task, raises ConfigError with the task's id."""
    if isinstance(task.prompt, Raw) or not task.prompt:
        problem = "is raw text" if isinstance(task.prompt, Raw) else "is empty"
        raise ConfigError(f"task {task.id}: its prompt {problem}, which no data file holds; give it text or messages")
    row = {"id": task.id, "prompt": task.prompt, "label": task.label, "metadata": task.metadata, "tools": task.tools}
    try:
        return {
            **{key: to_json(value, key) for key, value in row.items() if value not in (None, (), {})},
            "seed": task.seed,
        }
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"task {task.id}: {exc}; make it plain JSON") from exc


def _check(task: Task, where: str, checks: Iterable[Check | None]) -> None:
    try:
        for check in checks:
            if check is not None:
                check(task)
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _filled_in(envs: EnvFactory, split: Split, most: int | None) -> Iterator[Task]:
    for number, task in enumerate(_given(envs, split, most), 1):
        identity = task.id or f"{split}-{number}"
        yield replace(task, id=identity, seed=task.seed or zlib.crc32(identity.encode()), split=split)


def _given(envs: EnvFactory, split: Split, most: int | None) -> list[Task]:
    """The Env's tasks, before any check."""
    where = f"{envs.cls.__name__}.tasks for {split}"
    try:
        with _impatient(where):
            tasks = _listed(envs, split, most, where)
    except ConfigError:
        raise
    except Exception as exc:  # the boundary of `tasks`: any code may run in there
        raise ConfigError(f"{where} failed: {cause(exc)}") from exc
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, Task):
            problem = f"number {number} is {_kind(task)}, not a Task; yield Task(prompt=...)"
            raise ConfigError(f"{_at(envs.cls)}{where}: {problem}")
    return tasks


def _listed(envs: EnvFactory, split: Split, most: int | None, where: str) -> list[Task]:
    source = envs.cls.tasks(envs.config, split)
    if not isinstance(source, Iterable) or isinstance(source, str | dict):
        if inspect.iscoroutine(source):
            source.close()
        raise ConfigError(
            f"{_at(envs.cls)}{where}: gave {_kind(source)}, which is not iterable; `yield` tasks, in a plain `def`"
        )
    if most is None and not isinstance(source, Sized):
        most = DEFAULT_EPISODES[split]
    return list(islice(source, most))


@contextmanager
def _impatient(where: str) -> Iterator[None]:
    """Logs a warning if the tasks take long. A loop that waits for a combination which no longer exists never ends."""
    message = "%s has not ended for %.0f s: does a loop wait for tasks that do not exist? List all, then split them"
    timer = threading.Timer(PATIENCE_S, log.warning, (message, where, PATIENCE_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _at(cls: type[Env]) -> str:
    """The prefix of an error message, `file:line: `, with the place of the method `tasks` in the class."""
    place = definition(cls.tasks)
    return f"{place}: " if place else ""


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _refuse_the_same(envs: EnvFactory) -> None:
    """Raises ConfigError if every held-out task is also a training task. A few may be the same by chance.

    No error is raised if at least half of the held-out tasks repeat other held-out tasks. Such tasks differ only by
    their seeds: agentrl assigns each task a seed, and each seed gives a different world.
    """
    held_out, train = ([_content(task) for task in _given(envs, split, None)] for split in ("eval", "train"))
    differ = len(set(held_out)) > len(held_out) / 2
    if held_out and differ and set(train).issuperset(held_out):
        raise ConfigError(
            f"{envs.cls.__name__}.tasks gives the same tasks for train and eval; let them differ by `split`, such as "
            "by Random(split)"
        )


def _content(task: Task) -> str:
    return repr((task.prompt, task.label, task.metadata, task.tools, task.seed))
