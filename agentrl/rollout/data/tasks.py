"""Tasks from a file or from their Env, checked row by row."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import overload

from agentrl.env.factory import EnvFactory
from agentrl.env.tools import normal_spec
from agentrl.errors import ConfigError, did_you_mean
from agentrl.rollout.data.data_files import check_data, column_names, is_text_table, plain_name, read_rows
from agentrl.rollout.data.hub import HubRows, is_hub
from agentrl.rollout.data.own_tasks import Check, Split, makes_tasks, own_tasks
from agentrl.rollout.data.row_files import RowFile
from agentrl.types import JSON, Task

log = logging.getLogger("agentrl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The names of a data set's columns that hold a task's fields. The attributes have the names of slime's flags.
    Other columns are left out."""

    input_key: str = "prompt"
    """The column of the prompt: text, or messages."""
    label_key: str | None = None
    metadata_key: str | None = None
    """The column of the metadata: an object, or JSON text of an object. None: no metadata."""
    tool_key: str | None = None
    """The column of the tools: a list, or JSON text of a list. None: no tools."""

    def row(self, columns: Mapping[str, JSON]) -> dict[str, JSON]:
        """The row with agentrl's keys in place of the column names. A column without a value is left out."""
        names = {
            "prompt": self.input_key,
            "label": self.label_key,
            "metadata": self.metadata_key,
            "tools": self.tool_key,
        }
        names |= {"id": "id", "seed": "seed"}
        return {key: columns[name] for key, name in names.items() if name is not None and columns.get(name) is not None}

    def names(self) -> list[str]:
        """The names of the columns to read."""
        return [name for name in (*astuple(self), "id", "seed") if name is not None]


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
_LISTED = 10
"""The most refused rows whose lines an error lists."""


def tasks_of(
    envs: EnvFactory,
    data: Path | None,
    split: Split,
    *,
    episodes: int | None = None,
    check: Check | None = None,
    columns: Columns | None = None,
) -> list[Task]:
    """The tasks of a command: the tasks in `data`, or else the first `episodes` of the Env's own tasks.

    Without `episodes`, a list of tasks is taken whole. A generator may be endless, so 1000 tasks are taken for
    training, and 200 for evaluation. In addition to the Env's own check, `check` may raise ConfigError to refuse a
    task.

    Raises ConfigError if both `data` and `episodes` are set, if neither `data` nor the Env has tasks, if the Env has
    fewer tasks than `episodes`, and for any unusable task.
    """
    name = envs.cls.__name__
    if data is not None:
        if episodes is not None:
            raise ConfigError(
                f"--episodes is for tasks that {name} makes, and --data names a file; leave one of them out"
            )
        return load_tasks(data, split=split, check=_both(envs.check, check), columns=columns)
    if not makes_tasks(envs.cls):
        raise ConfigError(f"{name} makes no tasks; name a file of tasks with --data, or write {name}.tasks")
    tasks = own_tasks(envs, split, most=episodes, check=check)
    if not tasks:
        raise ConfigError(f"{name}.tasks gives no task for {split}; name a file of tasks with --data")
    if episodes is not None and len(tasks) < episodes:
        raise ConfigError(f"--episodes {episodes}: {name}.tasks gives {len(tasks)} for {split}; ask for no more")
    return tasks


def held_out_tasks(
    envs: EnvFactory,
    data: Path | None,
    most: int,
    *,
    from_env: bool,
    check: Check | None = None,
    columns: Columns | None = None,
) -> list[Task]:
    """The first `most` tasks of a file. Without a file, the Env's own held-out tasks if `from_env`, else no tasks.
    Raises ConfigError."""
    if data is not None:
        return load_tasks(data, split="eval", check=_both(envs.check, check), columns=columns)[:most]
    return own_tasks(envs, "eval", most=most, check=check) if from_env and makes_tasks(envs.cls) else []


def _both(first: Check, second: Check | None) -> Check:
    def check(task: Task) -> None:
        first(task)
        if second is not None:
            second(task)

    return check


def load_tasks(
    path: str | Path, *, split: Split, check: Check | None = None, columns: Columns | None = None
) -> list[Task]:
    """Read a Task from each line: {"prompt": str or messages, "label"?, "metadata"?, "tools"?, "id"?, "seed"?}.

    A row with a `reward_model` (verl's format, as in Search-R1) is read as published: `reward_model` is the label, and
    columns without a meaning here, such as data_source, become metadata. `columns` names the columns of any other form.
    `metadata` and `tools` may be JSON text. The file's name gives its format, as in `read_rows`. Other columns of
    Parquet and CSV are left out, with a warning.

    A row without an id gets its line as the id. A row without a seed gets a seed that is the same in every run. `check`
    may raise ConfigError to refuse a task.

    Raises ConfigError (`file:line: what and remedy`) for the first unusable row. If `check` refuses several rows, the
    error lists the other lines.
    """
    path = Path(path)
    check_data(path, _REMEDY)
    tasks: list[Task] = []
    refusals: dict[int, ConfigError] = {}
    name, of_text = plain_name(path), is_text_table(path)
    for number, row in read_rows(path, _REMEDY, _columns_to_read(path, columns)):
        values = _of_cells(row) if of_text else row
        tasks.append(_task(values, f"{path}:{number}", f"{name}-{number}", split, None, columns))
        try:
            if check is not None:
                check(tasks[-1])
        except ConfigError as exc:
            refusals[number] = exc
    _raise_first(path, refusals)
    if not tasks:
        raise ConfigError(f'{path}: no task in it; write one JSON object a line, such as {{"prompt": "..."}}')
    return tasks


def _raise_first(path: Path, refusals: Mapping[int, ConfigError]) -> None:
    """Raise the error of the first refused row, with the lines of the other refused rows."""
    if not refusals:
        return
    (first, refusal), *others = refusals.items()
    lines = ", ".join(str(number) for number, _ in others[:_LISTED])
    rest = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    also = f"; other refused lines: {lines}{rest}" if others else ""
    raise ConfigError(f"{path}:{first}: {refusal}{also}") from refusal


class TaskFile(Sequence[Task]):
    """The tasks of a file too large for memory, or of a range of rows in such a file. A row is read and checked when
    drawn.

    Arguments and errors are as in `load_tasks`. The errors of a row are raised when the row is read.
    """

    def __init__(
        self,
        path: Path,
        *,
        split: Split,
        check: Check | None = None,
        columns: Columns | None = None,
        part: slice = slice(None),
    ) -> None:
        check_data(path, _REMEDY)
        names = _columns_to_read(path, columns)
        self._rows = HubRows(path, names, part) if is_hub(path) else RowFile(path, _REMEDY, names, part)
        if not self._rows:
            raise ConfigError(f'{path}: no task in it; write one JSON object a line, such as {{"prompt": "..."}}')
        self._split, self._check, self._columns = split, check, columns
        self._name, self._of_text = plain_name(path), is_text_table(path)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Task: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Task]: ...

    def __getitem__(self, row: int | slice) -> Task | Sequence[Task]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        where = self._rows.where(row)
        values = _of_cells(self._rows[row]) if self._of_text else self._rows[row]
        name = f"{self._name}-{where.rpartition(':')[2]}"
        return _task(values, where, name, self._split, self._check, self._columns)

    @property
    def fingerprint(self) -> str:
        """A digest of the file's content, which changes if the content changes."""
        return self._rows.fingerprint


def _columns_to_read(path: Path, columns: Columns | None) -> list[str] | None:
    """The names of the columns of a table that are read. None for all columns. A warning lists the columns that are
    left out."""
    if columns is not None:
        return columns.names()
    names = column_names(path, _REMEDY)
    if names is None or _PUBLISHED in names:
        return None
    if others := [name for name in names if name not in _KEYS]:
        meant = did_you_mean(others[0], _KEYS) if len(others) == 1 else ""
        log.warning("%s: columns without a meaning here are left out: %s%s", path, ", ".join(others), meant)
    return [name for name in names if name in _KEYS]


def _of_cells(row: JSON) -> JSON:
    """A row of a text table. The JSON text of messages and the text of a seed are parsed."""
    if not isinstance(row, dict):
        return row
    values = dict(row)
    prompt, seed = values.get("prompt"), values.get("seed")
    if isinstance(prompt, str) and prompt.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            messages = json.loads(prompt)
            if messages and all(isinstance(message, dict) and "role" in message for message in messages):
                values["prompt"] = messages
    if isinstance(seed, str):
        with suppress(ValueError):
            values["seed"] = int(seed)
    return values


def _task(
    row: JSON, where: str, name: str, split: Split, check: Check | None = None, columns: Columns | None = None
) -> Task:
    if not isinstance(row, dict):
        raise ConfigError(f'{where}: {_kind(row)}, not an object; write {{"prompt": ...}}')
    if columns is not None:
        row = columns.row(row)
    elif _PUBLISHED in row:
        row = _as_published(row)
    row = _parsed(row)
    _check(row, where)
    with _at(where):
        tools = tuple(map(normal_spec, row.get("tools", ())))
    identity = str(row.get("id", name))
    task = Task(
        prompt=row["prompt"],
        label=row.get("label"),
        metadata=row.get("metadata", {}),
        tools=tools,
        id=identity,
        seed=row.get("seed", zlib.crc32(identity.encode())),
        split=split,
    )
    if check is not None:
        with _at(where):
            check(task)
    return task


def _parsed(row: Mapping[str, JSON]) -> dict[str, JSON]:
    """The row with parsed `metadata` and `tools`, if these are JSON text. Any other text stays unchanged, and is
    refused later."""
    parsed = dict(row)
    for key in ("metadata", "tools"):
        if isinstance(text := parsed.get(key), str):
            with suppress(ValueError, RecursionError):
                parsed[key] = json.loads(text)
    return parsed


def _as_published(row: Mapping[str, JSON]) -> dict[str, JSON]:
    """A row in verl's format with agentrl's keys. A null counts as a missing column, which Parquet cannot express
    otherwise."""
    columns = {key: value for key, value in row.items() if value is not None}
    standard: dict[str, JSON] = {key: columns.pop(key) for key in ("prompt", "tools", "id", "seed") if key in columns}
    metadata = columns.pop("metadata", {})
    more = metadata if isinstance(metadata, dict) else {"metadata": metadata}
    return {**standard, "label": columns.pop(_PUBLISHED), "metadata": {**more, **columns}}


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
        expected = " or ".join(_NAMES[t] for t in (types if isinstance(types, tuple) else (types,)))
        raise ConfigError(f'{where}: "{key}" is {_kind(value)}; it must be {expected}')


def _kind(value: JSON) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _NAMES.get(type(value), "a number")
