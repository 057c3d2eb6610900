"""Files of millions of rows, each row read from disk on demand. Only an index of the rows' offsets is in memory."""

from __future__ import annotations

import hashlib
import json
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, overload

from agentrl._util.config_errors import check_file
from agentrl.errors import ConfigError
from agentrl.rollout.data.data_files import is_jsonl, is_packed, read_rows, unpacked
from agentrl.rollout.data.jsonl import parse_line
from agentrl.types import JSON

_BLOCK = 1 << 20


class RowFile(Sequence[JSON]):
    """The rows of `read_rows`, each read from disk on demand. The index in memory takes eight bytes a row.

    `part` selects a range of the rows. Files that cannot be read row by row (Parquet, CSV, a JSON list, compressed
    files) are first written as JSONL to a temporary file without a name. The temporary file exists as long as this
    object. Of Parquet and CSV, only `columns` are read. Raises ConfigError for an unreadable file, and, when a row is
    read, for a row that is not JSON.
    """

    def __init__(
        self, path: Path, remedy: str, columns: Sequence[str] | None = None, part: slice = slice(None)
    ) -> None:
        check_file(path, remedy, "data file")
        self.path = path
        direct = is_jsonl(path, remedy) and not is_packed(path)
        self._file: IO[bytes] = path.open("rb") if direct else _as_lines(path, remedy, columns)
        weakref.finalize(self, self._file.close)
        self._places, self._lines = array("Q"), array("Q")
        place = 0
        for number, line in enumerate(self._file, 1):
            if not line.isspace():
                self._places.append(place)
                if len(self._places) != number:
                    self._lines.append(number)
            place += len(line)
        self._part = range(len(self._places))[part]

    def __len__(self) -> int:
        return len(self._part)

    @overload
    def __getitem__(self, row: int) -> JSON: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[JSON]: ...

    def __getitem__(self, row: int | slice) -> JSON | Sequence[JSON]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        self._file.seek(self._places[self._part[row]])
        return parse_line(self._file.readline(), self.where(row), first=self._part[row] == 0)

    def where(self, row: int) -> str:
        """The place of a row in error messages: `file:line`."""
        row = self._part[row]
        skipped = len(self._places) - len(self._lines)  # the rows before the first empty line
        return f"{self.path}:{row + 1 if row < skipped else self._lines[row - skipped]}"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the file's content: sixteen hexadecimal digits."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()[:16]


def _as_lines(path: Path, remedy: str, columns: Sequence[str] | None) -> IO[bytes]:
    """The rows of a file as JSONL in an unnamed file. Compressed JSONL keeps its lines and their numbers."""
    lines = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the RowFile
    try:
        if is_jsonl(path, remedy):
            with unpacked(path, remedy) as file:
                _write(lines, file, path)
        else:
            rows = read_rows(path, remedy, columns)
            _write(lines, (json.dumps(row, ensure_ascii=False).encode() + b"\n" for _, row in rows), path)
        lines.seek(0)
    except BaseException:
        lines.close()
        raise
    return lines


def _write(file: IO[bytes], lines: Iterable[bytes], path: Path) -> None:
    rest = iter(lines)
    while some := list(islice(rest, 1000)):
        try:
            file.writelines(some)
        except OSError as exc:
            raise ConfigError(
                f"{path}: cannot be unpacked into {tempfile.gettempdir()} ({exc.strerror}); set TMPDIR to a larger disk"
            ) from exc


class Permutation(Sequence[int]):
    """The numbers 0 to n-1 in an order that depends on a seed. Each number is computed on demand, so no list is in
    memory.

    The order is a Feistel network of four rounds on the smallest even number of bits, repeated until the number is
    below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """

    def __init__(self, n: int, seed: str) -> None:
        self._n = n
        self._bits = max((n - 1).bit_length() + 1, 2) // 2
        digest = hashlib.sha256(seed.encode()).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(4)]

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._n))]
        if not -self._n <= index < self._n:
            raise IndexError(index)
        value = self._encrypt(index % self._n)
        while value >= self._n:
            value = self._encrypt(value)
        return value

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(self._n))

    def _encrypt(self, value: int) -> int:
        mask = (1 << self._bits) - 1
        high, low = value >> self._bits, value & mask
        for key in self._keys:
            # The finaliser of MurmurHash3 (64 bits) mixes well, and is the same in every process.
            mixed = (low ^ key) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
            mixed = (mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
            high, low = low, high ^ ((mixed ^ (mixed >> 33)) & mask)
        return high << self._bits | low
