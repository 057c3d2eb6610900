"""The id of a sample's row. slime's data source numbers its samples and drops the rows' ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import plain_name, read_rows
from agentrl.slime.host import PART, DataFile, HostArgs, eval_files

_ATTRIBUTE = "agentrl_row_id"
_ROWS = 1_000_000
"""The most rows of a file that are looked up: the table is in memory."""
_FILES = 64


def set_row_id(sample: Any, row_id: str) -> None:
    """Keep a row's id on its sample. Copies of the sample have it, too."""
    setattr(sample, _ATTRIBUTE, row_id)


def row_id(flags: HostArgs, sample: Any, metadata: Mapping[str, Any], *, evaluation: bool) -> str:
    """The row's `id`, or else its file and line, as in `agentrl train`.

    The row is looked up by its content in slime's file. Without a match, as with a data source of the user's, the id is
    the number of the sample's group, or in evaluation the sample's own.
    """
    if (stored := getattr(sample, _ATTRIBUTE, None)) is not None:
        return str(stored)
    for file in eval_files(flags, sample) if evaluation else [DataFile.of_training(flags)]:
        if candidates := _table(file).get(_content(sample.prompt, sample.label)):
            return min(candidates, key=lambda candidate: not _holds(metadata, candidate[1]))[0]
    group, index = getattr(sample, "group_index", None), getattr(sample, "index", None)
    number = index if group is None else group
    return "" if number is None else str(number)


_Table = Mapping[int, list[tuple[str, str]]]
"""Maps a row's content to the ids of the rows with this content, each with the row's metadata as JSON text."""


@lru_cache(maxsize=_FILES)
def _table(file: DataFile) -> _Table:
    path = Path(match["path"] if (match := PART.fullmatch(file.path)) else file.path)
    if not file.path or not path.is_file():
        return {}
    input_key, label_key, metadata_key = file.input_key, file.label_key, file.metadata_key
    table: dict[int, list[tuple[str, str]]] = {}
    columns = [column for column in (input_key, label_key, metadata_key, "id") if column]
    with suppress(ConfigError):  # slime reads the file differently, and reports unreadable rows
        for number, row in islice(read_rows(path, "give a JSONL or Parquet file", columns), _ROWS):
            if isinstance(row, dict) and row.get(input_key) is not None:
                label = None if label_key is None else row.get(label_key)
                identity = str(f"{plain_name(path)}-{number}" if row.get("id") is None else row["id"])
                entry = identity, _text(row.get(metadata_key or ""))
                table.setdefault(_content(row[input_key], label), []).append(entry)
    return {key: [(rows[0][0], "")] if len(rows) == 1 else rows for key, rows in table.items()}


def _content(prompt: Any, label: Any) -> int:
    return hash(_text([prompt, label]))


def _holds(metadata: Mapping[str, Any], row: str) -> bool:
    """Whether a sample with this metadata may come from a row with the row's metadata. A data set may add keys."""
    try:
        columns = json.loads(row)
        columns = json.loads(columns) if isinstance(columns, str) and columns else columns or {}
    except ValueError:
        return False
    return isinstance(columns, dict) and all(_text(metadata.get(key)) == _text(value) for key, value in columns.items())


def _text(value: Any) -> str:
    """The same text for the same JSON, however a reader of Parquet shows arrays and missing values."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
