"""kill -9 of a rollout at random moments: every prompt of the epoch is trained once, whatever was going on.

`make crash` plays 2,000 prompts and kills 50 times. The oracle reads what the updates wrote into the weights.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from itertools import count
from random import Random

import pytest

from tests.rollout.crash.oracle import faults
from tests.rollout.crash.program import Settings, main, newest
from tests.rollout.crash.updates import KILLS, rewind, updates
from tests.rollout.crash.updates import settings as settings

PATIENCE_S = 60 + 20 * KILLS

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)


def start(settings, renderer, seed):
    """A process of the run. It is forked, because a new one would load a tokenizer for longer than it lives."""
    child = os.fork()
    if child:
        return child
    try:
        main(settings, renderer, seed)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the boundary of the child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed(settings, child, after, rng):
    """Whether the process could be killed: after so many updates, and a random while more."""
    deadline = time.monotonic() + PATIENCE_S
    while updates(settings) < after and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def run_with_kills(settings, renderer, rng, kills, *, rewinds=0):
    """Kill the run at random moments, spread over its course, and return its last weights. Some kills are followed by
    a rewind to an older checkpoint."""
    rewound, hits, seeds = rng.sample(range(1, kills), rewinds), 0, count()
    while hits < kills:
        after = int(0.9 * (hits + rng.random()) / kills * settings.prompts / settings.batch)
        hit = killed(settings, start(settings, renderer, next(seeds)), after, rng)
        hits += hit
        if not hit or hits in rewound:  # the run had ended: the next kill is to hit it
            rewind(settings, 2)
    _, status = os.waitpid(start(settings, renderer, next(seeds)), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return newest(settings.folder)["weights"]


def report(capsys, settings, weights):
    begun = Counter((settings.folder / "episodes.log").read_text())
    with capsys.disabled():
        print(
            f"\n{settings.prompts} prompts in groups of {settings.group_size}, {KILLS} kills, "
            f"{len(weights['updates'])} updates; episodes: {begun['p']} begun, {begun['r']} taken from earlier tries"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("rewinds", [0, KILLS // 3])
def test_every_prompt_is_trained_once(settings, renderer, capsys, rewinds):
    weights = run_with_kills(settings, renderer, Random(rewinds), KILLS, rewinds=rewinds)
    report(capsys, settings, weights)
    assert faults(weights, settings.prompts, settings.group_size) == []


@pytest.mark.thorough
def test_a_checkpoint_without_its_groups_loses_prompts(tmp_path, renderer):
    broken = Settings(folder=tmp_path, prompts=80, group_size=2, checkpoint_every=2, forgets_groups=True)
    weights = run_with_kills(broken, renderer, Random(0), 3)
    assert any(fault.endswith(" is lost") for fault in faults(weights, 80, 2))


RIGHT = {
    "names": ["w0", "w1", "w2"],
    "updates": [[(0, "1", [("a", ["w0"]), ("b", ["w0"])])], [(0, "0", [("c", ["w0", "w1"]), ("d", ["w1"])])]],
}


@pytest.mark.parametrize(
    ("played", "found"),
    [
        ([(0, "1", [("c", ["w0"]), ("d", ["w0"])])], ["task 0 is lost", "task 1 was trained 2 times"]),
        ([(0, "0", [("c", ["w1"])])], ["task 0 was trained with 1 episodes"]),
        ([(0, "0", [("c", ["w1"]), ("d", ["w2"])])], ["task 0: 1 of the weights that played it never were"]),
        ([(0, "0", [("a", ["w1"]), ("d", ["w1"])])], ["an episode was trained 2 times"]),
        ([(0, "7", [("c", ["w1"]), ("d", ["w1"])])], ["task 0 is lost", "task 7 is not in the data"]),
    ],
)
def test_the_oracle_sees(played, found):
    assert faults(RIGHT, 2, 2) == []
    assert faults({**RIGHT, "updates": [RIGHT["updates"][0], played]}, 2, 2) == found


@pytest.mark.thorough
def test_without_a_journal_episodes_are_played_again_and_none_is_lost(tmp_path, renderer):
    plain = Settings(folder=tmp_path, prompts=80, group_size=2, journal=False)
    weights = run_with_kills(plain, renderer, Random(0), 2)
    assert faults(weights, 80, 2) == []
