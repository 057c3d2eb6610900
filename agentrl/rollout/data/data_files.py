"""Read the rows of a data file. The name of the file gives the format: JSONL, a JSON list, CSV or Parquet, compressed
or not. A folder, or a name on the Hub, is read by the library `datasets`."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from agentrl._util.config_errors import check_file
from agentrl.errors import ConfigError
from agentrl.rollout.data.hub import HubRows, hub_bytes, hub_columns, hub_name, is_hub
from agentrl.rollout.data.jsonl import parse_line, read_lines
from agentrl.rollout.data.parquet import count_parquet, parquet_columns, read_parquet
from agentrl.types import JSON

_SEPARATORS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
"""The ending of a text table's name -> the separator of its columns."""


def read_rows(path: Path, remedy: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, JSON]]:
    """The number and content of each row of a data file. `remedy` is the advice in error messages. Raises ConfigError
    (`file:line: what and remedy`).

    A folder, or a name `hub:org/name`, is read by the library `datasets`. A file's name ends in .parquet, .csv, .tsv or
    .json (a list of rows, or JSONL). Any other file is JSONL. A further ending .gz, .bz2, .xz or .zst gives the
    compression. Of tables, only the existing `columns` are read. A cell of CSV is text, and an empty cell counts as
    missing.
    """
    kind = _kind(path)
    if is_hub(path):
        yield from enumerate(HubRows(path, columns), 1)
    elif kind == ".parquet":
        yield from read_parquet(path, remedy, columns)
    elif kind == ".json" and _is_list(path, remedy):
        yield from _read_list(path, remedy)
    else:
        with unpacked(path, remedy) as file:
            yield from _read_table(path, file, columns) if is_text_table(path) else read_lines(file, path)


def count_rows(path: Path, remedy: str) -> int:
    """The number of rows of a data file. Rows of JSONL are not parsed. Raises ConfigError."""
    check_file(path, remedy)
    if _kind(path) == ".parquet":
        return count_parquet(path, remedy)
    if not is_jsonl(path, remedy):
        return sum(1 for _ in read_rows(path, remedy))
    with unpacked(path, remedy) as lines:
        return sum(1 for line in lines if line.strip())


def column_names(path: Path, remedy: str) -> list[str] | None:
    """The names of the columns of a data set of the Hub, of a folder, and of a Parquet or CSV file. None for other
    files. Raises ConfigError."""
    if is_hub(path):
        return hub_columns(path)
    if _kind(path) == ".parquet":
        return parquet_columns(path, remedy)
    if not is_text_table(path):
        return None
    with unpacked(path, remedy) as file, _table(path, file) as table:
        return list(table.fieldnames or ())


def is_jsonl(path: Path, remedy: str) -> bool:
    """Whether a file, after decompression, has a JSON row on each line. Raises ConfigError."""
    kind = _kind(path)
    return kind != ".parquet" and not is_text_table(path) and not (kind == ".json" and _is_list(path, remedy))


def is_text_table(path: Path) -> bool:
    """Whether every value in a file is text, as in CSV."""
    return _kind(path) in _SEPARATORS


def check_data(path: Path, remedy: str) -> None:
    """Raises ConfigError if there is no data file at the path. A data set of the Hub is checked when it is read."""
    if not is_hub(path):
        check_file(path, remedy, "data file")


def data_bytes(path: Path) -> int:
    """The bytes of a data file, or of the rows of a data set. Raises ConfigError."""
    return hub_bytes(path) if is_hub(path) else path.stat().st_size


def plain_name(path: Path) -> str:
    """The name of a file without the endings for format and compression, or of a data set."""
    if is_hub(path):
        return hub_name(path)
    return Path(path.stem).stem if is_packed(path) else path.stem


def is_packed(path: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return path.suffix in _OPENERS


@contextmanager
def unpacked(path: Path, remedy: str) -> Iterator[IO[bytes]]:
    """The decompressed content of a file, by the ending of its name. Raises ConfigError, also for damage during the
    read."""
    try:
        with _OPENERS.get(path.suffix, Path.open)(path, "rb") as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as exc:
        raise ConfigError(f"{path}: cannot be unpacked ({exc}); pack it anew") from exc
    except OSError as exc:
        check_file(path, remedy)
        why = exc.strerror or " ".join(str(exc).split())
        raise ConfigError(f"{path}: {why}; {remedy}") from exc


def _zstd(path: Path, mode: str) -> Any:
    try:
        import pyarrow as pa
    except ImportError as exc:
        raise ConfigError(f"{path}: reading .zst needs pyarrow: pip install pyarrow, or unpack the file") from exc
    return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))


_OPENERS: Mapping[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}


def _kind(path: Path) -> str:
    """The ending of a file's name that gives the format, without an ending for compression."""
    return (Path(path.stem) if is_packed(path) else path).suffix.lower()


def _is_list(path: Path, remedy: str) -> bool:
    """Whether the content of a file begins as a JSON list."""
    with unpacked(path, remedy) as file:
        first = next((line.strip() for line in file if line.strip()), b"")
    return first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _read_list(path: Path, remedy: str) -> Iterator[tuple[int, JSON]]:
    with unpacked(path, remedy) as file:
        rows = parse_line(file.read(), f"{path}", first=True)
    if not isinstance(rows, list):  # a list of JSON begins otherwise
        raise ConfigError(f"{path}: not a list of rows; {remedy}")
    yield from enumerate(rows, 1)


@contextmanager
def _table(path: Path, file: IO[bytes]) -> Iterator[csv.DictReader[str]]:
    """A reader of the rows of a text table, with the column names of the first line. Raises ConfigError, also while
    rows are read."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # prompts are longer than Python's limit of 128 KiB
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        table = csv.DictReader(text, delimiter=_SEPARATORS[_kind(path)], strict=True)
        try:
            yield table
        except csv.Error as exc:
            raise ConfigError(f"{path}:{table.line_num}: not valid CSV ({exc}); quote fields as RFC 4180 does") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{path}:{table.line_num}: not UTF-8 text ({exc.reason}); save it as UTF-8") from exc


def _read_table(path: Path, file: IO[bytes], columns: Sequence[str] | None) -> Iterator[tuple[int, JSON]]:
    with _table(path, file) as table:
        for number, row in enumerate(table, 1):
            if None in row:
                raise ConfigError(
                    f"{path}:{number}: more fields than the first line names; put a text with "
                    f"{_SEPARATORS[_kind(path)]!r} into double quotes"
                )
            yield number, {key: cell for key, cell in row.items() if cell and (columns is None or key in columns)}
