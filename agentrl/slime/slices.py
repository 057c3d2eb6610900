"""Parts of one file as data sets of slime's, which reads FILE@[FIRST:END] as those rows of the file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.rollout.jsonl import read_jsonl


def slices(file: Path, key: str) -> list[tuple[str, str]]:
    """A name and a path for each value of the key, in the order of the rows. Raises ConfigError.

    Rows of one value must stand together.
    """
    found: dict[str, str] = {}
    first = 0
    for name, rows in groupby(_values(file, key)):
        end = first + sum(1 for _ in rows)
        if name in found:
            raise ConfigError(f"{file}: the rows with {key} {name} do not stand together; sort the file by {key}")
        found[name] = f"{file}@[{first}:{end}]"
        first = end
    if not found:
        raise ConfigError(f"{file}: no row in it")
    return [*found.items()]


def _values(file: Path, key: str) -> Iterator[str]:
    if not file.is_file():
        raise ConfigError(f"{file}: no such data file; give a JSONL or Parquet file")
    for number, value in enumerate(_column(file, key), 1):
        if not isinstance(value, str) or not value or value != "".join(value.split()):
            raise ConfigError(f"{file}, row {number}: {key} is {value!r:.80}; it must be a name without spaces")
        yield value


def _column(file: Path, key: str) -> Iterator[object]:
    if file.suffix != ".parquet":
        for number, row in read_jsonl(file, "give a JSONL or Parquet file"):
            if not isinstance(row, dict) or key not in row:
                raise ConfigError(f"{file}:{number}: no key {key!r}; name one that all rows have")
            yield row[key]
        return
    try:
        parquet = import_module("pyarrow.parquet").ParquetFile(file)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{file}: pyarrow, which reads it, is not installed; pip install pyarrow") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{file}: not readable as Parquet: {exc}") from exc
    if key not in parquet.schema_arrow.names:
        raise ConfigError(f"{file}: no column {key!r} (it has: {', '.join(parquet.schema_arrow.names)})")
    for batch in parquet.iter_batches(columns=[key]):
        yield from batch.column(0).to_pylist()
