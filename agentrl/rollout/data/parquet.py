"""Read the rows of a Parquet file as plain JSON values, equal to the values of JSON Lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from agentrl.errors import ConfigError
from agentrl.plain import to_json
from agentrl.types import JSON


def read_parquet(path: Path, remedy: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, JSON]]:
    """The number and the columns of each row. The first row is 1. With `columns`, only these columns are read, if they
    exist.

    Arrow gives every struct of a column the keys of all rows, with null for missing keys. So a key without a value is
    left out: of a row, and of any object in the row. A null in a list stays null.

    Dates and times become ISO text, durations seconds, and decimals numbers. Raises ConfigError (`file:row: what and
    remedy`).
    """
    with _opened(path, remedy) as file:
        names = file.schema_arrow.names
        selected = [name for name in names if columns is None or name in columns]
        number = 0
        for batch in file.iter_batches(columns=selected):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                number += 1
                yield number, plain_row(row, f"{path}:{number}")


def parquet_columns(path: Path, remedy: str) -> list[str]:
    """The names of a Parquet file's columns. Raises ConfigError."""
    with _opened(path, remedy) as file:
        return list(file.schema_arrow.names)


def count_parquet(path: Path, remedy: str) -> int:
    """The number of rows of a Parquet file. Raises ConfigError."""
    with _opened(path, remedy) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _opened(path: Path, remedy: str) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as exc:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or {remedy}") from exc
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as exc:
        raise ConfigError(f"{path}: not a readable Parquet file ({' '.join(str(exc).split())}); {remedy}") from exc


def plain_row(row: Any, where: str) -> JSON:
    """A row of Arrow as plain JSON, without the keys that have no value. Raises ConfigError."""
    try:
        return to_json(_without_nulls(row), "the row")
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if not _is_missing(item)}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return _scalar(value)


def _is_missing(value: Any) -> bool:
    """Whether a value is null, or the float NaN that pandas writes for null."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _scalar(value: Any) -> Any:
    """A scalar of Arrow as a JSON value. A scalar without a form in JSON is returned unchanged."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, UUID) else value
