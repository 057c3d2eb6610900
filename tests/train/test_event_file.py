"""Event files are what TensorBoard reads."""

from __future__ import annotations

import pytest

from agentrl.train.trackers import EventFile

pytest.importorskip("tensorboardX")


def test_tensorboard_reads_it_and_a_resumed_run_replaces_its_steps(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = EventFile(tmp_path, 1)
    for step in (1, 2, 3):
        first.add(step, {"reward_mean": step / 4, "groups": 4, "ä" * 200: 1.0})
    second = EventFile(tmp_path, 3)  # in the same second
    second.add(3, {"reward_mean": 0.875})

    reader = accumulators.EventAccumulator(str(tmp_path)).Reload()  # the files are still open: each step is written

    scalars = [(event.step, event.value) for event in reader.Scalars("reward_mean")]
    assert scalars == [(1, 0.25), (2, 0.5), (3, 0.875)]
    assert [event.step for event in reader.Scalars("ä" * 200)] == [1, 2]
    assert [event.value for event in reader.Scalars("groups")] == [4.0, 4.0]
    first.close()
    second.close()


def test_a_step_that_cannot_be_written_is_an_error(tmp_path):
    """A run ends with the cause. A thread that writes would end alone."""
    file = EventFile(tmp_path, 1)
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.add(1, {"reward_mean": 0.5})
