"""Read the rows of a Parquet file, or of a file by its name, as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.plain import to_json
from agentrl.rollout.jsonl import read_jsonl
from agentrl.types import JSON


def read_rows(path: Path, remedy: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, JSON]]:
    """The number and content of each row of a file named .parquet, or else of a JSONL file. Raises ConfigError.

    Of a Parquet file, only `columns` are read, as far as it has them.
    """
    return _read_parquet(path, remedy, columns) if path.suffix == ".parquet" else read_jsonl(path, remedy)


def _read_parquet(path: Path, remedy: str, columns: Sequence[str] | None) -> Iterator[tuple[int, JSON]]:
    """Each row's number, from 1, and its columns. Raises ConfigError (`file:row: what and remedy`)."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as exc:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or {remedy}") from exc
    try:
        with ParquetFile(path) as file:
            number = 0
            known = [name for name in file.schema_arrow.names if columns is None or name in columns]
            for batch in file.iter_batches(columns=known or None):
                for row in batch.to_pylist():
                    number += 1
                    yield number, _plain(row, f"{path}:{number}")
    except (ArrowException, OSError) as exc:
        raise ConfigError(f"{path}: not a readable Parquet file ({' '.join(str(exc).split())}); {remedy}") from exc


def _plain(row: JSON, where: str) -> JSON:
    try:
        return to_json(row, "the row")
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc
