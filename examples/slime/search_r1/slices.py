"""Print a data set for each value of a column in a file, as words for slime's --eval-prompt-data.

    python3 slices.py test.parquet data_source      # nq, test.parquet@[0:3610], triviaqa, ... one a line

slime reads FILE@[FIRST:END] as the rows FIRST to END - 1 of the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import read_rows


def slices(file: Path, key: str) -> list[tuple[str, str]]:
    """A name and a path for each value of the key, in the order of the rows. Raises ConfigError.

    Rows with the same value must be adjacent.
    """
    parts: dict[str, str] = {}
    first = 0
    for name, rows in groupby(_values(file, key)):
        end = first + sum(1 for _ in rows)
        if name in parts:
            raise ConfigError(f"{file}: the rows with {key} {name} do not stand together; sort the file by {key}")
        parts[name] = f"{file}@[{first}:{end}]"
        first = end
    if not parts:
        raise ConfigError(f"{file}: no row in it")
    return [*parts.items()]


def _values(file: Path, key: str) -> Iterator[str]:
    if not file.is_file():
        raise ConfigError(f"{file}: no such data file; give a JSONL or Parquet file")
    for number, value in enumerate(_column(file, key), 1):
        if not isinstance(value, str) or not value or value != "".join(value.split()):
            raise ConfigError(f"{file}, row {number}: {key} is {value!r:.80}; it must be a name without spaces")
        yield value


def _column(file: Path, key: str) -> Iterator[object]:
    """The key's value in each row. None if a row lacks the key, as the reader of Parquet files drops null values."""
    for number, row in read_rows(file, "give a JSONL or Parquet file", [key]):
        if not isinstance(row, dict) or (key not in row and number == 1):
            has = f" (it has: {', '.join(row)})" if isinstance(row, dict) else ""
            raise ConfigError(f"{file}:{number}: no key {key!r}{has}; name one that all rows have")
        yield row.get(key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a JSONL or Parquet file")
    parser.add_argument("key", help="the column that names the data sets")
    arguments = parser.parse_args()
    try:
        parts = slices(arguments.file, arguments.key)
    except ConfigError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    for name, path in parts:
        print(f"{name}\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
