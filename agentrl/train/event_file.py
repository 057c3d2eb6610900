"""TensorBoard's event files, written without TensorBoard: figures by step, a record for each step.

TensorBoard with its requirements is 20 MB to download, and is not needed to write. The format: TFRecord's framing
(length, CRC-32C of the length, data, CRC-32C of the data, each CRC masked) around the protobuf messages `Event` and
`Summary` of tensorboard/compat/proto.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path

_VERSION = b"brain.Event:2"
_POLYNOMIAL = 0x82F63B78
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
"""Fields of Event."""
_VALUE, _TAG, _SIMPLE_VALUE, _STATUS = 1, 1, 2, 1
"""Fields of Summary, of Value (twice), and of SessionLog."""
_STARTED = 1


class EventFile:
    """A new event file in `folder`. Figures of older files from `step` on are replaced."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.agentrl"  # TensorBoard reads them in the order of their names
        self._file = (folder / name).open("ab")
        self._write(_bytes(_FILE_VERSION, _VERSION))
        self._write(_varint(_STEP, step) + _bytes(_SESSION_LOG, _varint(_STATUS, _STARTED)))

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step, so that TensorBoard sees them at once. Raises OSError."""
        values = [
            _bytes(_VALUE, _bytes(_TAG, name.encode()) + _key(_SIMPLE_VALUE, 5) + struct.pack("<f", value))
            for name, value in figures.items()
        ]
        self._write(_varint(_STEP, step) + _bytes(_SUMMARY, b"".join(values)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        data = _key(_WALL_TIME, 1) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))
        self._file.flush()


def _key(field: int, wire: int) -> bytes:
    """The prefix of a value: the field's number, and the encoding (0 varint, 1 eight bytes, 2 length first, 5 four)."""
    return bytes([field << 3 | wire])


def _varint(field: int | None, value: int) -> bytes:
    """Seven bits a byte, the lowest first; without a field, the bare number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return (b"" if field is None else _key(field, 0)) + bytes(encoded)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(None, len(value)) + value


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ _POLYNOMIAL * (crc & 1) for crc in table]
    return table


_CRCS = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRCS[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
