"""Read the rows of a Parquet file as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.plain import plain
from agentrl.types import JSON


def read_parquet(path: Path, remedy: str) -> Iterator[tuple[int, JSON]]:
    """Each row's number, from 1, and its columns. Raises ConfigError (`file:row: what and remedy`)."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as exc:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or {remedy}") from exc
    try:
        with ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, _plain(row, f"{path}:{number}")
    except (ArrowException, OSError) as exc:
        raise ConfigError(f"{path}: no Parquet file that can be read ({' '.join(str(exc).split())}); {remedy}") from exc


def _plain(row: JSON, where: str) -> JSON:
    try:
        return plain(row, "the row")
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc
