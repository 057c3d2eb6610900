"""Rows of the data sets that the library `datasets` reads: names on the Hugging Face Hub, and folders.

The library downloads a data set once, into its cache, as Arrow files. The files are mapped into memory, so rows of a
large data set stay on disk. Streaming without a copy is not used: epochs are shuffled, and a resumed run continues at
its row.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollout.data.parquet import plain_row
from agentrl.types import JSON

_NAME = re.compile(r"hub:(?P<path>[^:@]+)(?::(?P<config>[^@]+))?(?:@(?P<split>.+))?")
_SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote."""


def is_hub(path: Path) -> bool:
    """Whether a path is `hub:org/name`, with an optional `:config` and `@split`, or a folder."""
    return str(path).startswith("hub:") or path.is_dir()


def hub_name(path: Path) -> str:
    """The name of the data set, without its organisation, configuration and split."""
    match = _NAME.fullmatch(str(path))
    return Path(match["path"] if match else path).name


def hub_bytes(path: Path) -> int:
    """The bytes of the rows. Raises ConfigError."""
    return int(load_hub(str(path)).data.nbytes)


def hub_columns(path: Path) -> list[str]:
    """The names of the columns. Raises ConfigError."""
    return list(load_hub(str(path)).column_names)


class HubRows:
    """The rows of a data set, each read from disk on demand. Keys without a value are left out, as in `read_parquet`.

    `part` selects a range of the rows. Only the existing `columns` are read. Raises ConfigError if the data set cannot
    be loaded, and, when a row is read, for a value without a form in JSON.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None, part: slice = slice(None)) -> None:
        self.path, rows = path, load_hub(str(path))
        self._rows = rows.select_columns([name for name in rows.column_names if columns is None or name in columns])
        self._part = range(len(rows))[part]

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, row: int) -> JSON:
        return plain_row(self._rows[self._part[row]], self.where(row))

    def __iter__(self) -> Iterator[JSON]:
        return (self[row] for row in range(len(self)))

    def where(self, row: int) -> str:
        """The place of a row in error messages: `hub:org/name:row`. The first row is 1."""
        return f"{self.path}:{self._part[row] + 1}"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the columns that are read: sixteen hexadecimal digits."""
        from pyarrow import PythonFile
        from pyarrow.ipc import new_stream

        digest = _Digest()
        for table in self._rows.with_format("arrow").iter(batch_size=1000):
            schema = table.schema.remove_metadata()
            with new_stream(PythonFile(digest, "w"), schema) as stream:
                stream.write_table(table.replace_schema_metadata().combine_chunks())
        return digest.sha256.hexdigest()[:16]


class _Digest:
    """A file that hashes the written bytes."""

    closed = False

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return len(data)

    def flush(self) -> None:
        pass


@lru_cache(maxsize=16)
def load_hub(name: str) -> Any:
    """The data set. Without a split, the only split, or the split train. Raises ConfigError."""
    path, config, split = parse_name(name)
    try:
        import datasets
    except ImportError as exc:
        raise ConfigError(f"{name}: the library datasets reads it ({exc}): pip install datasets") from exc
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if any((Path(path) / file).exists() for file in _SAVED):
            data = datasets.load_from_disk(path)
            data = data[split] if split else data
        else:
            data = datasets.load_dataset(path, config, split=split)
    except ConnectionError as exc:
        raise ConfigError(
            f"{name}: {_line(exc)}, and the cache has no copy; load it once with a network, then HF_HUB_OFFLINE=1 works"
        ) from exc
    except Exception as exc:  # files of a data set raise anything
        raise ConfigError(f"{name}: it cannot be loaded ({_line(exc)}); correct the name, or the files") from exc
    splits = list(data) if isinstance(data, dict) else []
    if splits and len(splits) > 1 and "train" not in splits:
        raise ConfigError(f"{name} has the splits {', '.join(splits)}; name one: hub:{path}@{splits[0]}")
    return data["train" if "train" in splits else splits[0]] if splits else data


def parse_name(name: str) -> tuple[str, str | None, str | None]:
    if not name.startswith("hub:"):
        return name, None, None
    if (match := _NAME.fullmatch(name)) is None:
        raise ConfigError(f"{name}: write hub:org/name, hub:org/name:config or hub:org/name:config@split")
    return match["path"], match["config"], match["split"]


def _line(exc: Exception) -> str:
    cause = exc.__cause__ if exc.__cause__ is not None and len(str(exc)) < len(str(exc.__cause__)) else exc
    return f"{type(exc).__name__}: {' '.join(str(cause).split()):.300}"
