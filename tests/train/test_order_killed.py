"""kill -9 of a run whose episodes never stop: no token is trained twice, or at too great an age.

Each update is written down with the weights before and after it, and with what it learned from. What a checkpoint does
not hold is lost with its process. So after a resume from step N the updates after N no longer count, and the rest must
be one chain. `make soak` kills 20 times.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

KILLS = 20 if "AGENTRL_SOAK" in os.environ else 2
STALENESS, STEPS = 2, 6 + 4 * KILLS
PATIENCE_S = 300

pytestmark = pytest.mark.timeout(PATIENCE_S * (KILLS + 2))

PROGRAM = """
import hashlib, json, os, sys
from agentrl.train import TrainConfig, Trainer, train

config, log, resume = TrainConfig.from_yaml(sys.argv[1]), sys.argv[2], sys.argv[3] == "resume"

def note(**values):
    with open(log, "a") as file:
        file.write(json.dumps(values) + "\\n")

class Recorded(Trainer):
    async def setup(self):
        await super().setup()
        note(began=self.position.step, pid=os.getpid(), engine=self.engine.engine._process.pid)

    def digest(self):
        weights = self.learner.model.state_dict().values()
        return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in weights)).hexdigest()

    def update(self, groups, step):
        played = [trajectory for group in groups for trajectory in group]
        spans = [span for t in played for segment in t.segments for span in segment.spans if span.trained]
        before = self.digest()
        found = super().update(groups, step)
        note(
            step=step, before=before, after=self.digest(), played=[t.session_id for t in played],
            groups=sorted({t.session_id.rpartition("-")[0] for t in played}),
            versions=sorted({int(span.weight_version) for span in spans}),
        )
        return found

train(config, trainer=Recorded, resume=resume)
"""


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, seconds, why):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


class Killed:
    """One process of the run at a time."""

    def __init__(self, folder, config):
        self.log, self.said, self.config = folder / "log.jsonl", folder / "said.txt", folder / "config.yaml"
        self.config.write_text(config.to_yaml())
        self.log.touch()
        self.started = []

    def notes(self):
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def start(self, how):
        with self.said.open("a") as said:
            command = [sys.executable, "-c", PROGRAM, str(self.config), str(self.log), how]
            self.started.append(subprocess.Popen(command, stdout=said, stderr=said))
        return self.started[-1]

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()

    def kill_later(self, how, rng):
        """Start, and kill after a random number of updates and a random while."""
        process, before, updates = self.start(how), len(self.notes()), rng.randrange(1, 5)
        wait_until(
            lambda: len(self.notes()) > before + updates or process.poll() is not None, PATIENCE_S, self.said.read_text
        )
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL, self.said.read_text()


def chain(notes):
    """The updates that count in the end: those before each resume, and what came after it."""
    kept = []
    for note in notes:
        if "began" in note:
            kept = [update for update in kept if update["step"] <= note["began"]]
        else:
            kept.append(note)
    return kept


@pytest.fixture
def run(make_config, tmp_path):
    few = {"prompts_per_step": 2, "group_size": 2, "checkpoint_every": 2}
    killed = Killed(tmp_path, make_config(staleness=STALENESS, stale="mask", steps=STEPS, learning_rate=1e-3, **few))
    yield killed
    killed.end()


@pytest.mark.thorough
def test_random_kills(run, tmp_path):
    rng = random.Random(0)
    for number in range(KILLS):
        run.kill_later("resume" if number else "begin", rng)
        checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))
        if number % 2 and len(checkpoints) > 1:  # back to an older checkpoint
            shutil.rmtree(checkpoints[-1])
    last = run.start("resume" if KILLS else "begin")
    assert last.wait(PATIENCE_S) == 0, run.said.read_text()

    notes = run.notes()
    updates = chain(notes)
    assert [update["step"] for update in updates] == list(range(1, STEPS + 1))
    assert all(one["after"] == two["before"] for one, two in pairwise(updates))
    assert sum(update["before"] != update["after"] for update in updates) > STEPS / 2, "others have equal rewards"
    played = [name for update in updates for name in update["played"]]
    assert len(played) == len(set(played)) == 4 * STEPS
    numbers = sorted(int(group.rpartition("-")[2]) for update in updates for group in update["groups"])
    assert len(set(numbers)) == len(numbers) == 2 * STEPS, "each group is trained once"
    assert numbers[-1] < 2 * (STEPS + STALENESS + 1), "no group is lost"
    for update in updates:
        ages = [update["step"] - 1 - version for version in update["versions"]]
        assert all(0 <= age <= STALENESS for age in ages)
    assert max(update["step"] - 1 - min(update["versions"], default=update["step"]) for update in updates) > 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(1, STEPS + 1))
    engines = [note["engine"] for note in notes if "engine" in note]
    assert len(engines) == KILLS + 1
    wait_until(lambda: not any(map(lives, engines)), 30, lambda: "an engine outlives its trainer")
