"""The journal: episodes outlive their process, a rewind forgets what came later, and one process writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout.loop.journal import Journal, newest_weights, oldest_weights
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation, Rendered, RenderedSpan
from tests.rollout.buffers import buffer, play, played

COLUMNS = ["number", "state", "step", "attempts", "reason"]


@pytest.fixture
def opened(tmp_path):
    """Open the journal anew, as a new process would."""
    found = []

    def again():
        for journal in found:
            journal.close()
        found[:] = [Journal(tmp_path / "journal.db")]
        return found[0]

    yield again
    found[0].close()


def copy(state):
    return json.loads(json.dumps(state))


def sampled(task, *versions):
    """An episode whose turns were sampled by these versions of the weights."""
    trajectory = Trajectory(task, session_id="s")
    trajectory.append_prompt(Rendered([1, 2], (RenderedSpan("prompt", 0, 2),)))
    for version in versions:
        trajectory.append_model(Generation([3], [-0.5], "abort", weight_version=str(version)))
    trajectory.reward = 1.0
    return trajectory


def rows(journal):
    journal.flush()
    query = f"SELECT {', '.join(COLUMNS)} FROM groups ORDER BY number"
    return [dict(zip(COLUMNS, row, strict=True)) for row in journal._database.execute(query)]


def test_episodes_outlive_their_process(opened):
    own = buffer(journal=opened())
    a, b, c = (own.take() for _ in range(3))
    own.keep(a, 1, sampled(a.task))
    play(own, b)
    own.put_back(c, [sampled(c.task, 0)])
    state = copy(own.state())

    again = buffer(journal=opened())
    again.restore(state)
    found = {group.number: group for group in (again.take() for _ in range(3))}
    assert found[0].members[0] is None
    assert found[0].members[1].reward == 1.0
    assert found[1].ended
    assert found[2].members[0].tokens == [1, 2, 3]
    assert again.take().members == [None, None]


def test_what_was_drawn_after_the_checkpoint_is_drawn_again_with_its_episodes(opened):
    own = buffer(journal=opened())
    state = copy(own.state())
    group = own.take()
    own.keep(group, 0, sampled(group.task, 0))

    again = buffer(journal=opened())
    again.restore(state)
    same = again.take()
    assert (same.number, same.task) == (group.number, group.task)
    assert same.members[0].tokens == [1, 2, 3]


def test_no_episode_of_later_weights_comes_back(opened):
    own = buffer(journal=opened())
    a, b, c, d = (own.take() for _ in range(4))
    own.trained(1, [play(own, a)])
    state = copy(own.state())
    own.saved(state)
    own.keep(b, 0, sampled(b.task, 0, 1))
    own.keep(b, 1, sampled(b.task, 1, 2))
    own.trained(2, [play(own, c)])
    own.keep(d, 0, sampled(d.task))

    again = buffer(journal=opened())
    again.restore(state)
    found = {group.number: group for group in (again.take() for _ in range(3))}
    assert [member is None for member in found[b.number].members] == [False, True]
    assert found[b.number].born == 0
    assert found[d.number].members == [None, None], "it does not name its weights, and ended after step 2"


def test_a_group_that_is_put_back_without_members_begins_anew_after_a_crash_too(opened):
    own = buffer(journal=opened())
    group = play(own, own.take())
    own.put_back(group)
    state = copy(own.state())
    again = buffer(journal=opened())
    again.restore(state)
    assert again.take().members == [None, None]


def test_a_reward_that_comes_later_is_saved(opened):
    own = buffer(journal=opened())
    group = own.take()
    trajectories = [sampled(group.task), sampled(group.task)]
    for index, trajectory in enumerate(trajectories):
        own.keep(group, index, trajectory)
    trajectories[1].reward = 0.25
    own.finished(group, trajectories)
    state = copy(own.state())
    again = buffer(journal=opened())
    again.restore(state)
    assert [member.reward for member in again.take().members] == [1.0, 0.25]


def test_it_says_what_became_of_each_group_and_a_rewind_takes_it_back(opened):
    own = buffer(journal=opened())
    a, b, c, d = (own.take() for _ in range(4))
    own.trained(1, [play(own, a)])
    own.drop(b, "staleness")
    own.put_back(c)
    state = copy(own.state())
    own.trained(2, [play(own, own.take()), play(own, d)])
    own.take()
    found = rows(opened())
    assert [row["state"] for row in found] == ["trained", "dropped", "trained", "trained", "playing"]
    assert found[1]["reason"] == "staleness"
    assert [row["step"] for row in found] == [1, 1, 2, 2, None]

    again = buffer(journal=opened())
    again.restore(state)
    found = rows(opened())
    assert [row["state"] for row in found] == ["trained", "dropped", "waiting", "waiting"]
    assert [row["attempts"] for row in found] == [0, 0, 1, 0]


def test_episodes_that_no_checkpoint_needs_are_forgotten(opened):
    def kept():
        journal.flush()
        return Counter(number for (number,) in journal._database.execute("SELECT number FROM episodes"))

    journal = opened()
    own = buffer(7, journal=journal)
    first, second, third = (own.take() for _ in range(3))
    play(own, first)
    own.saved(copy(own.state()))
    assert kept() == {0: 2}
    own.trained(1, [first])
    assert kept() == {0: 2}, "a restart from the checkpoint needs them"
    own.finished(second, [sampled(second.task, 1)] * 2)
    own.trained(2, [second])
    assert kept() == {0: 2}, "weights of a later step have sampled the second"
    own.keep(third, 0, sampled(third.task, 1))
    own.saved(copy(own.state()))
    assert kept() == {2: 1}


def test_the_journal_of_another_run_is_not_used(opened, tmp_path, caplog):
    own = buffer(journal=opened())
    play(own, own.take())
    state = copy(own.state())
    opened().close()
    (tmp_path / "journal.db").unlink()
    journal = Journal(tmp_path / "journal.db")
    again = buffer(journal=journal)
    again.restore(state)
    assert again.take().members == [None, None]
    assert "is not the checkpoint's" in caplog.text
    journal.close()


def test_changed_data_that_was_accepted_brings_no_episodes_of_other_tasks(opened):
    own = buffer(5, journal=opened())
    groups = [play(own, own.take()) for _ in range(4)]
    gone = sum(group.row > 2 for group in groups)
    state = copy(own.state())

    again = buffer(3, journal=opened())
    with pytest.raises(ConfigError, match="the data had 5 rows and has 3"):
        again.restore(state)
    again.restore(state, accept_changes=True)
    assert again.journal._episodes() == {}
    assert again.dropped == {"row_is_gone": gone}
    found = [again.take() for _ in range(4 - gone)]
    assert all(group.members == [None, None] for group in found)
    assert [group.number for group in found] == [group.number for group in groups if group.row <= 2]


HOLDER = """
import sys, time
from pathlib import Path
from agentrl.rollout.loop.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.note((0, 0, 0), "playing")
journal.flush()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.thorough
def test_a_second_process_is_refused_until_the_first_has_died(tmp_path):
    path = tmp_path / "journal.db"
    first = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline() == b"ready\n"
        with pytest.raises(ConfigError, match=r"journal\.db: another process writes this journal; wait for its end"):
            Journal(path)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    journal = Journal(path)
    assert rows(journal)[0]["state"] == "playing", "what was flushed outlives kill -9"
    journal.close()


def test_damage_is_one_line(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match=r"not a readable journal .*; delete it"):
        Journal(tmp_path / "journal.db")


def test_a_file_that_others_can_write_to_is_refused(tmp_path):
    Journal(tmp_path / "journal.db").close()
    os.chmod(tmp_path / "journal.db", 0o666)
    with pytest.raises(ConfigError, match="chmod go-w"):
        Journal(tmp_path / "journal.db")


def test_a_disk_that_cannot_be_written_is_one_line(opened):
    journal = opened()
    journal._database.execute("DROP TABLE groups")
    own = buffer(journal=journal)
    own.take()
    with pytest.raises(ConfigError, match="the journal cannot be written"):
        journal.flush()
    with pytest.raises(ConfigError, match="the journal cannot be written"):
        own.take()


def test_versions_of_weights():
    group = buffer().take()
    one = sampled(group.task, 3, 5)
    assert newest_weights(one, 9) == 5
    assert oldest_weights([None, one, sampled(group.task, 0)], 9) == 0
    assert newest_weights(played(group)[0], 9) == oldest_weights([None], 9) == 9
