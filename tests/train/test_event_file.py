"""Event files are what TensorBoard reads: by its own reader where it is installed, and by its format's rules."""

from __future__ import annotations

import struct

import pytest

from agentrl.train import event_file
from agentrl.train.event_file import EventFile


def records(folder):
    """The data of each record, after its two checksums."""
    found = []
    for file in sorted(folder.iterdir()):
        raw = file.read_bytes()
        while raw:
            (length,) = struct.unpack("<Q", raw[:8])
            data = raw[12 : 12 + length]
            assert raw[8:12] == event_file._masked_crc(raw[:8])
            assert raw[12 + length : 16 + length] == event_file._masked_crc(data)
            found.append(data)
            raw = raw[16 + length :]
    return found


def test_checksums_are_crc32c():
    """RFC 3720, B.4: 32 bytes of zeros, and of ones; masked as TFRecord does it."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert event_file._masked_crc(data) == struct.pack("<I", masked)


def test_a_step_is_one_record(tmp_path):
    file = EventFile(tmp_path, 1)
    file.add(300, {"reward_mean": 0.25, "groups": 4})
    version, began, step = (record[9:] for record in records(tmp_path))  # after the time

    assert version == b"\x1a\x0dbrain.Event:2"
    assert began == b"\x10\x01" + b"\x3a\x02\x08\x01"
    reward = b"\x0a\x0breward_mean\x15" + struct.pack("<f", 0.25)
    groups = b"\x0a\x06groups\x15" + struct.pack("<f", 4)
    values = b"".join(b"\x0a" + bytes([len(value)]) + value for value in (reward, groups))
    assert step == b"\x10\xac\x02" + b"\x2a" + bytes([len(values)]) + values
    file.close()


def test_tensorboard_reads_it_and_a_resumed_run_replaces_its_steps(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = EventFile(tmp_path, 1)
    for step in (1, 2, 3):
        first.add(step, {"reward_mean": step / 4, "ä" * 200: 1.0})
    first.close()
    second = EventFile(tmp_path, 3)
    second.add(3, {"reward_mean": 0.875})
    second.close()

    found = accumulators.EventAccumulator(str(tmp_path)).Reload()

    scalars = [(event.step, event.value) for event in found.Scalars("reward_mean")]
    assert scalars == [(1, 0.25), (2, 0.5), (3, 0.875)]
    assert [event.step for event in found.Scalars("ä" * 200)] == [1, 2]
