"""Tasks from a file or from their Env, and the endless, resumable stream of them that training draws from."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from agentrl._util.config_errors import check_file
from agentrl._util.content import content
from agentrl.env.factory import EnvFactory
from agentrl.env.tools import normal_spec
from agentrl.errors import ConfigError, did_you_mean
from agentrl.rollout.buffer import DrawnTask
from agentrl.rollout.own_tasks import Check, Split, makes_tasks, own_tasks
from agentrl.rollout.parquet import read_rows
from agentrl.rollout.pass_rates import Curriculum, PassRateWindow, TaskChoice
from agentrl.types import JSON, Task

_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "prompt": (str, list),
    "label": object,
    "metadata": dict,
    "tools": list,
    "id": (str, int),
    "seed": int,
}
_NAMES: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}
_REMEDY = "give a JSONL file with one task a line"
_PUBLISHED = "reward_model"


def tasks_of(
    envs: EnvFactory, data: Path | None, split: Split, *, episodes: int | None = None, check: Check | None = None
) -> list[Task]:
    """The tasks of a command: those in `data`, or else the first `episodes` that the Env makes by itself.

    Without `episodes`, a list of tasks is taken whole. Of a generator, which may be endless, 1000 tasks are taken to
    train on, and 200 held out. `check` may raise ConfigError to refuse a task, beside the Env's own check.

    Raises ConfigError if there are both or neither, if the Env makes fewer than `episodes`, and for any task that
    cannot be used.
    """
    name = envs.cls.__name__
    if data is not None:
        if episodes is not None:
            raise ConfigError(
                f"--episodes is for tasks that {name} makes, and --data names a file; leave one of them out"
            )
        return load_tasks(data, split=split, check=_both(envs.check, check))
    if not makes_tasks(envs.cls):
        raise ConfigError(f"{name} makes no tasks; name a file of tasks with --data, or write {name}.tasks")
    tasks = own_tasks(envs, split, most=episodes, check=check)
    if not tasks:
        raise ConfigError(f"{name}.tasks gives no task for {split}; name a file of tasks with --data")
    if episodes is not None and len(tasks) < episodes:
        raise ConfigError(f"--episodes {episodes}: {name}.tasks gives {len(tasks)} for {split}; ask for no more")
    return tasks


def held_out_tasks(envs: EnvFactory, data: Path | None, most: int, *, own: bool) -> list[Task]:
    """The first tasks of a file, else the Env's own if `own`. Empty if there are none. Raises ConfigError."""
    if data is not None:
        return load_tasks(data, split="eval", check=envs.check)[:most]
    return own_tasks(envs, "eval", most=most) if own and makes_tasks(envs.cls) else []


def _both(one: Check, other: Check | None) -> Check:
    def check(task: Task) -> None:
        one(task)
        if other is not None:
            other(task)

    return check


def load_tasks(path: str | Path, *, split: Split, check: Check | None = None) -> list[Task]:
    """Read one Task a line: {"prompt": str or messages, "label"?, "metadata"?, "tools"?, "id"?, "seed"?}.

    A row with a `reward_model`, as Search-R1's and others in verl's format, is read as published: `reward_model` is the
    label, and columns without a meaning here, such as data_source, become metadata. A file named .parquet is read with
    pyarrow.

    A row without an id is named by its line. A row without a seed gets its own seed, the same in every run. `check` may
    raise ConfigError to refuse a task.

    Raises ConfigError (`file:line: what and remedy`) for the first row that cannot be used.
    """
    path = Path(path)
    check_file(path, _REMEDY, "data file")
    tasks: list[Task] = []
    for number, row in read_rows(path, _REMEDY):
        tasks.append(_task(row, f"{path}:{number}", f"{path.stem}-{number}", split))
        if check is not None:
            with _at(f"{path}:{number}"):
                check(tasks[-1])
    if not tasks:
        raise ConfigError(f'{path}: no task in it; write one JSON object a line, such as {{"prompt": "..."}}')
    return tasks


def _task(row: JSON, where: str, name: str, split: Split) -> Task:
    if not isinstance(row, dict):
        raise ConfigError(f'{where}: {_kind(row)}, not an object; write {{"prompt": ...}}')
    row = _as_published(row) if _PUBLISHED in row else row
    _check(row, where)
    with _at(where):
        tools = tuple(map(normal_spec, row.get("tools", ())))
    identity = str(row.get("id", name))
    return Task(
        prompt=row["prompt"],
        label=row.get("label"),
        metadata=row.get("metadata", {}),
        tools=tools,
        id=identity,
        seed=row.get("seed", zlib.crc32(identity.encode())),
        split=split,
    )


def _as_published(row: Mapping[str, JSON]) -> dict[str, JSON]:
    """A row in verl's format under our keys. A null column counts as missing: Parquet cannot express it otherwise."""
    given = {key: value for key, value in row.items() if value is not None}
    own: dict[str, JSON] = {key: given.pop(key) for key in ("prompt", "tools", "id", "seed") if key in given}
    metadata = given.pop("metadata", {})
    more = metadata if isinstance(metadata, dict) else {"metadata": metadata}
    return {**own, "label": given.pop(_PUBLISHED), "metadata": {**more, **given}}


@contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _check(row: Mapping[str, JSON], where: str) -> None:
    if "prompt" not in row:
        raise ConfigError(f'{where}: no "prompt"; give a string or a list of messages')
    for key, value in row.items():
        _check_value(key, value, where)
    prompt = row["prompt"]
    if not prompt:
        raise ConfigError(f'{where}: "prompt" is empty; give a string or a list of messages')
    for i, message in enumerate(prompt if isinstance(prompt, list) else ()):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ConfigError(f'{where}: prompt[{i}] is not a message; write {{"role": "user", "content": "..."}}')


def _check_value(key: str, value: JSON, where: str) -> None:
    if key not in _KEYS:
        meant = did_you_mean(key, _KEYS, "; the keys are {}")
        raise ConfigError(f'{where}: unknown key "{key}"; put your own into metadata{meant}')
    types = _KEYS[key]
    if not isinstance(value, types) or (isinstance(value, bool) and types is not object):
        wanted = " or ".join(_NAMES[t] for t in (types if isinstance(types, tuple) else (types,)))
        raise ConfigError(f'{where}: "{key}" is {_kind(value)}; it must be {wanted}')


def _kind(value: JSON) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _NAMES.get(type(value), "a number")


class TaskStream:
    """A stream of tasks, shuffled in each epoch by (seed, epoch). Its position can be saved and restored.

    It ends after `epochs`; None: never.

    `pass_rates` leaves out tasks whose pass rate is outside of this window (`PassRateWindow`), and `curriculum` the
    difficult ones until the others are passed at this rate (`Curriculum`). Both need `record`, and both pass over a
    task when its turn comes. If all tasks of an epoch are passed over, the next one begins, until one is drawn.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        *,
        pass_rates: tuple[float, float] | None = None,
        curriculum: float | None = None,
        epochs: int | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("a TaskStream needs at least one task")
        self._tasks, self._seed, self._epochs = list(tasks), seed, epochs
        keys = list(map(_digest, self._tasks))
        self._rows = "".join(keys)
        """Eight hexadecimal digits for each task. It is short because every checkpoint holds it."""
        self._choices: dict[str, TaskChoice] = {}
        if pass_rates is not None:
            self._choices["pass_rates"] = PassRateWindow(keys, *pass_rates)
        if curriculum is not None:
            self._choices["curriculum"] = Curriculum(self._tasks, curriculum)
        self._epoch = self._position = 0
        self._order = self._shuffled()

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, across the end of an epoch if necessary."""
        return [drawn.task for drawn in (self.draw() for _ in range(n)) if drawn is not None]

    def draw(self) -> DrawnTask | None:
        """The next task, and where it was drawn. None after the last of `epochs`."""
        while True:
            if self._position == len(self._order):
                if self._epoch + 1 == self._epochs:
                    return None
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            row = self._order[self._position]
            self._position += 1
            if all(choice.wants(row, self._epoch) for choice in self._choices.values()):
                return DrawnTask(self._tasks[row], row, self._epoch)

    def task(self, row: int) -> Task:
        """The task of a row of the data."""
        return self._tasks[row]

    def record(self, row: int, rate: float) -> None:
        """Note the pass rate of a group of a row's task."""
        for choice in self._choices.values():
            choice.record(row, rate, self._epoch)

    def metrics(self) -> dict[str, JSON]:
        """What the pass rates have decided so far; empty if nothing depends on them."""
        found: dict[str, JSON] = {}
        for choice in self._choices.values():
            found |= choice.metrics(self._epoch)
        return found

    def state_dict(self) -> dict[str, JSON]:
        """Position and pass rates, as a copy."""
        chosen = {name: choice.state_dict() for name, choice in self._choices.items()}
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "rows": self._rows, **chosen}

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changes: bool = False) -> None:
        """Continue at the position of `state_dict`. Raises ConfigError if the seed changed, or a task, unless
        accepted."""
        changes = self._changes(state.get("rows"))
        if changes and not accept_changes:
            raise ConfigError(
                f"{changes} since the run began; restore the data, or add --accept-changed-data to continue with "
                "it as it is"
            )
        if state["seed"] != self._seed:
            raise ConfigError(f"the run began with seed {state['seed']}, not {self._seed}; restore it, or begin anew")
        self._epoch, self._position = state["epoch"], min(state["position"], len(self._tasks))
        self._order = self._shuffled()
        for name, choice in self._choices.items():
            if name in state:
                choice.load_state_dict(state[name])

    def _shuffled(self) -> list[int]:
        order = list(range(len(self._tasks)))
        Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return order

    def _changes(self, before: str | None) -> str:
        """Which rows have changed, in words; "" if none has, or if it is unknown."""
        now = self._rows
        if before is None or before == now:
            return ""
        old, new = ([rows[i : i + _DIGITS] for i in range(0, len(rows), _DIGITS)] for rows in (before, now))
        if len(old) != len(new):
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
            return f"the data had {len(old)} rows and has {len(new)}, other ones from row {same + 1} on,"
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        named = ", ".join(f"{i + 1} (id {self._tasks[i].id})" for i in changed[:_NAMED])
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return f"{len(changed)} of {len(new)} rows of the data changed, row {named}{more},"


_DIGITS, _NAMED = 8, 5


def _digest(task: Task) -> str:
    return hashlib.sha256(content(task).encode()).hexdigest()[:_DIGITS]
