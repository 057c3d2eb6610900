"""Converts slime's Sample to a Task. Only this module reads the prompt, label and metadata of a sample."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import plain_name, read_rows
from agentrl.slime.host import PART, DataFile, HostArgs, Rendering, eval_files, eval_renderings
from agentrl.slime.images import with_images
from agentrl.slime.sample import own_metadata
from agentrl.types import JSON, Observation, Raw, Task, ToolSpec

_ATTRIBUTE = "agentrl_row_id"
_ROWS = 1_000_000
"""The number of rows of a file in the look-up table, which is in memory. Later rows have no match."""
_FILES = 64
_Table: TypeAlias = Mapping[int, list[tuple[str, str]]]
"""Content of a row -> the (id, metadata as JSON text) of each row with this content."""


def from_sample(args: Any, sample: Any, *, evaluation: bool = False) -> Task:
    """Build a Task from a copy of the sample's content. Raises ConfigError for unreadable content.

    The id is that of the row, as in `agentrl train`; see `row_id`. A prompt that slime's --apply-chat-template has
    rendered becomes Raw. All samples of a group have the same seed, so they play in the same world. In evaluation slime
    numbers no groups, so each sample has a different seed, which is the same in every run.
    """
    flags, metadata = HostArgs.of(args), copy.deepcopy(without_arrays(own_metadata(metadata_of(sample))))
    group, index = getattr(sample, "group_index", None), getattr(sample, "index", None)
    return Task(
        prompt=_prompt(flags, sample, evaluation=evaluation),
        label=copy.deepcopy(without_arrays(sample.label)),
        metadata=metadata,
        tools=_tools(metadata.get("tools")),
        id=row_id(flags, sample, metadata, evaluation=evaluation),
        seed=group if group is not None else index or 0,
        split="eval" if evaluation else "train",
    )


def metadata_of(sample: Any) -> Mapping[str, JSON]:
    """The sample's metadata. JSON text in a data set is parsed. Raises ConfigError if the result is not a mapping."""
    raw = sample.metadata
    parsed = {} if raw is None else _parsed(raw)
    if not isinstance(parsed, Mapping):
        raise ConfigError(f"sample.metadata is {raw!r:.200}: give an object, or JSON text of one; see --metadata-key")
    return parsed


def without_arrays(data: Any) -> Any:
    """The data with lists in place of arrays, also within mappings and lists: pandas reads a list of a Parquet file as
    an array."""
    if hasattr(data, "tolist"):
        data = data.tolist()
    if isinstance(data, dict):
        return {key: without_arrays(value) for key, value in data.items()}
    return [without_arrays(value) for value in data] if isinstance(data, list) else data


def template_kwargs(args: Any, sample: Any, *, evaluation: bool) -> Mapping[str, Any]:
    """The template arguments that slime would use: those of the sample, else of its evaluation data set, else of the
    flag."""
    if kwargs := getattr(sample, "apply_chat_template_kwargs", None):
        return dict(kwargs)
    chosen = [rendering.template_kwargs for rendering in _renderings(HostArgs.of(args), sample, evaluation)]
    return dict(_same(chosen, "apply_chat_template_kwargs", "set `chat_template_kwargs` under `agentrl`"))


def _prompt(flags: HostArgs, sample: Any, *, evaluation: bool) -> Observation:
    prompt = without_arrays(sample.prompt)
    if isinstance(prompt, str):
        chosen = [rendering.rendered for rendering in _renderings(flags, sample, evaluation)]
        remedy = "set it to false for all of them (agentrl renders prompts itself)"
        return Raw(prompt) if _same(chosen, "apply_chat_template", remedy) else prompt
    if isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) and "role" in m for m in prompt):
        return [with_images(message) for message in copy.deepcopy(list(prompt))]
    raise ConfigError(f"sample.prompt is neither text nor messages: {prompt!r:.200}; check --input-key")


def _renderings(flags: HostArgs, sample: Any, evaluation: bool) -> Sequence[Rendering]:
    """The possible renderings of the prompt: several if the sample may come from one of several data sets."""
    default = Rendering(flags.apply_chat_template, flags.apply_chat_template_kwargs or {})
    return (eval_renderings(flags, sample, default) if evaluation else ()) or [default]


def _same(chosen: Sequence[Any], name: str, remedy: str) -> Any:
    if any(value != chosen[0] for value in chosen):
        raise ConfigError(
            f"eval datasets differ in {name}, and a sample does not tell which of them it is from; {remedy}, or mark "
            "each with `metadata_overrides: {dataset: NAME}`"
        )
    return chosen[0]


def _tools(raw: Any) -> Sequence[ToolSpec]:
    """The tools of a row, from a list or from the JSON text of a list."""
    tools = _parsed(raw)
    if tools is None or tools == "":
        return ()
    if not isinstance(tools, list | tuple) or not all(isinstance(spec, Mapping) for spec in tools):
        raise ConfigError(f"metadata['tools'] is {raw!r:.200}: give a list of tools, or JSON text of one")
    return tools


def _parsed(value: Any) -> Any:
    """The value of JSON text. Other values, and text that is not JSON, are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def set_row_id(sample: Any, row_id: str) -> None:
    """Store a row's id in its sample. Copies of the sample have the id, too."""
    setattr(sample, _ATTRIBUTE, row_id)


def row_id(flags: HostArgs, sample: Any, metadata: Mapping[str, Any], *, evaluation: bool) -> str:
    """The `id` of the sample's row, or else the file and line of the row, as in `agentrl train`.

    The row is looked up by its content in slime's file. If no row matches, as with a data source of the user's, the id
    is the number of the sample's group. In evaluation it is then the number of the sample.
    """
    if (stored := getattr(sample, _ATTRIBUTE, None)) is not None:
        return str(stored)
    for file in eval_files(flags, sample) if evaluation else [DataFile.of_training(flags)]:
        if candidates := _table(file).get(_content(sample.prompt, sample.label)):
            return min(candidates, key=lambda candidate: not _holds(metadata, candidate[1]))[0]
    group, index = getattr(sample, "group_index", None), getattr(sample, "index", None)
    number = index if group is None else group
    return "" if number is None else str(number)


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
    """Whether a sample with this metadata may come from a row with the metadata `row` (JSON text). A data set may add
    keys."""
    try:
        columns = json.loads(row)
        columns = json.loads(columns) if isinstance(columns, str) and columns else columns or {}
    except ValueError:
        return False
    return isinstance(columns, dict) and all(_text(metadata.get(key)) == _text(value) for key, value in columns.items())


def _text(value: Any) -> str:
    """The value as JSON text. The text is the same however a reader of Parquet represents arrays and missing values."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
