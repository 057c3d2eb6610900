"""kill -9 while checkpoints are written: whenever it comes, the newest that was complete is there, and whole."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from agentrl._util import files
from agentrl.train import model_folder
from agentrl.train.run_folder import RunFolder

FILES, BYTES = 4, 50_000


def write(path):
    for i in range(FILES):
        (path / f"weights_{i}").write_bytes(os.urandom(BYTES))


def save_for_ever(folder, step, told):
    """Checkpoints and final weights in turn; each step is told once its checkpoint is complete."""
    try:
        while True:
            step += 1
            folder.append_metrics({"step": step})
            folder.save_checkpoint(step, write)
            os.write(told, f"{step}\n".encode())
            folder.save_model(folder.model, step, write)
    finally:
        os._exit(1)


@pytest.mark.thorough
@pytest.mark.parametrize("exchange", [True, False])
def test_kill_9_at_any_moment(tmp_path, make_config, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    folder = RunFolder(tmp_path / "run")
    folder.create(make_config())
    moments, newest = random.Random(0), 0
    for _ in range(25):
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            save_for_ever(folder, newest, tell)
        os.close(tell)
        os.read(told, 10)  # it has begun
        time.sleep(moments.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(told) as said:
            done = [int(line) for line in said.read().split()]
        found = folder.latest_checkpoint(pytest.fail)
        assert found is not None
        newest = max([newest, *done])
        at = int(found.name.removeprefix("step_"))
        assert at >= newest, "what was complete is not lost"
        assert len(list(found.iterdir())) == FILES + 1
        weights = model_folder(folder.path)
        assert files.damage(weights) is None
        assert files.about_folder(weights)["step"] >= newest
        folder.rewind(at)
        assert [line["step"] for line in folder.read_metrics()] == list(range(1, at + 1))
        newest = at
    assert not list(folder.checkpoints.glob(".*"))
    folder.unlock()
