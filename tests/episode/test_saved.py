"""Files of episodes that several processes share: who may take one, and what happens when its owner dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl._util import owners
from agentrl._util.owners import Owner, current
from agentrl.episode.parking import Parking
from agentrl.episode.saved import OwnedEpisodeError, SavedEpisodes
from agentrl.errors import ResumeError
from tests.episode.parked_files import files, parked

KEY = "0" * 32
TAKES = """
import sys, time
from pathlib import Path
from agentrl.episode.saved import SavedEpisodes
place = SavedEpisodes(Path(sys.argv[1]), shared=True)
{does}
print("done", flush=True)
sys.stdin.read()
"""


def soon() -> float:
    return time.time() + 60


@pytest.fixture
def place(tmp_path):
    return SavedEpisodes(tmp_path, shared=True, dead_s=0.3)


@pytest.fixture
def process(tmp_path):
    """`process(does)`: another process that does this in the same folder, and waits."""
    started = []

    def start(does: str) -> subprocess.Popen:
        code = TAKES.format(does=does)
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(other)
        assert other.stdout.readline() == "done\n"
        return other

    yield start
    for other in started:
        other.kill()
        other.communicate()


@pytest.fixture
def elsewhere(monkeypatch):
    """Other processes are on another machine, where only their heartbeats can be seen."""
    monkeypatch.setattr("agentrl.episode.saved.is_dead", lambda owner: None if owner != current() else False)


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["taken", "ended"])
def test_the_file_of_a_process_that_was_killed_can_be_taken_at_once(place, process, state):
    other = process(f"place.write('{KEY}', b'state', time.time() + 60, '{state}')")
    with pytest.raises(ResumeError, match="is playing it" if state == "taken" else "gone: expired, or used"):
        place.take(KEY, soon())
    other.kill()
    other.wait()
    assert place.take(KEY, soon()) == b"state"
    place.remove(KEY)
    place.close()
    assert list(place.folder.iterdir()) == [], "the heartbeat of the dead is gone, too"


@pytest.mark.thorough
def test_of_two_processes_that_take_one_gets_it(place, process):
    for n in range(8):
        key = f"{n:032}"
        place.write(key, b"state", soon(), "parked")
    codes = [
        "import sys, time\nfrom pathlib import Path\nfrom agentrl.episode.saved import SavedEpisodes\n"
        f"place = SavedEpisodes(Path({str(place.folder)!r}), shared=True)\nsys.stdin.readline()\n"
        "for n in range(8):\n    try:\n        place.take(f'{n:032}', time.time() + 60)\n        print(n)\n"
        "    except Exception: pass\n"
        "print('done', flush=True); sys.stdin.read()"
    ] * 3
    others = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for code in codes
    ]
    for other in others:
        other.stdin.write("go\n")
        other.stdin.flush()
    # All have tried before one ends: what an owner held that has ended may be taken.
    got = [int(line) for other in others for line in iter(other.stdout.readline, "done\n")]
    for other in others:
        other.communicate()
    assert sorted(got) == list(range(8))


@pytest.mark.thorough
def test_elsewhere_an_owner_is_dead_when_it_is_silent(place, process, elsewhere):
    other = process(f"place.dead_s = 0.1; place.write('{KEY}', b'state', time.time() + 60, 'taken')")
    time.sleep(0.5)
    with pytest.raises(OwnedEpisodeError, match=rf"process {other.pid}, is playing it"):
        place.take(KEY, soon())
    other.kill()
    other.wait()
    begun = time.monotonic()
    while True:
        try:
            assert place.take(KEY, soon()) == b"state"
            break
        except OwnedEpisodeError:
            time.sleep(0.02)
    assert time.monotonic() - begun < 5


@pytest.mark.thorough
async def test_who_waits_gets_it_when_the_owner_has_died(tmp_path, process, elsewhere):
    other = process(
        "import pickle; from tests.episode.parked_files import parked; from agentrl.episode.parking import _HEADER\n"
        f"place.dead_s = 0.1; place.write('{KEY}', _HEADER + pickle.dumps(parked()), time.time() + 60, 'taken')"
    )
    waits = Parking(str(tmp_path), dead_s=0.4)
    with pytest.raises(OwnedEpisodeError):
        await waits.take_key(KEY, 60)
    with pytest.raises(OwnedEpisodeError):
        await waits.take_key(KEY, 60, lambda: True)
    other.kill()
    other.wait()
    assert (await waits.take_key(KEY, 60)).episode.played_s == 1.5
    await waits.ended(KEY)


def test_an_owner_that_was_thought_dead_may_not_write_on(place, process):
    """It had stood still for longer than dead_s, and another process has taken the episode."""
    place.write(KEY, b"old", soon(), "taken")
    mine = place.folder / f"{KEY}.{current()}.taken"
    other = str(replace(Owner.parse(current()), pid=os.getppid(), start=""))
    mine.rename(place.folder / f"{KEY}.{other}.taken")
    with pytest.raises(ResumeError, match="another process has resumed it, because this one showed no sign of life"):
        place.write(KEY, b"new", soon(), "taken")
    assert (place.folder / f"{KEY}.{other}.taken").read_bytes() == b"old"
    place.remove(KEY)
    place.give_back(KEY)
    assert files(place.folder) == {f"{KEY}.{other}.taken"}, "neither does it remove what is not its own"


def test_a_state_is_replaced_whole_and_given_back(place):
    place.write(KEY, b"one", soon(), "taken")
    place.write(KEY, b"two", soon(), "taken")
    assert place.plays(KEY)
    with pytest.raises(ResumeError, match="in this process already"):
        place.take(KEY, soon())
    place.give_back(KEY)
    assert not place.plays(KEY)
    assert files(place.folder) == {f"{KEY}.parked"}
    assert place.take(KEY, soon()) == b"two"
    place.write(KEY, b"three", soon(), "ended")
    assert files(place.folder) == {f"{KEY}.{current()}.ended"}
    with pytest.raises(ResumeError, match="gone: expired, or used before"):
        place.take(KEY, soon())
    assert files(place.folder) == set(), "a new episode of its name begins"


@pytest.mark.parametrize("state", ["parked", "ended"])
@pytest.mark.parametrize("kill_at", [1, 2])
def test_a_kill_while_a_state_is_written_leaves_one_file(place, state, kill_at):
    """It is killed before its first or second change of a name. An older file beside would be resumed some day."""
    code = TAKES.format(
        does=f"place.write('{KEY}', b'old', time.time() + 60, 'taken')\n"
        "import os\n"
        "changes = []\n"
        "def hook(event, args):\n"
        "    changes.extend([event] if event in ('os.rename', 'os.remove') else [])\n"
        f"    len(changes) < {kill_at} or os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        f"place.write('{KEY}', b'new', time.time() + 60, '{state}')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(place.folder)], check=False).returncode == 9
    assert len([name for name in files(place.folder) if KEY in name and not name.endswith(".unfinished")]) == 1
    assert place.take(KEY, soon()) == (b"old" if kill_at == 1 else b"new")
    place.remove(KEY)
    with pytest.raises(ResumeError, match="gone: expired, or used before"):
        place.take(KEY, soon())


def test_what_the_dead_had_is_swept_when_its_time_is_over(place, process):
    other = process(
        f"place.write('{KEY}', b'', time.time() - 1, 'taken')\n"
        f"place.write('{'1' * 32}', b'', time.time() + 60, 'taken')"
    )
    place.close()
    assert len(files(place.folder)) == 3, "it lives"
    other.kill()
    other.wait()
    place.close()
    left = files(place.folder)
    assert {name[:32] for name in left if name.endswith(".taken")} == {"1" * 32}
    assert len(left) == 2, "its heartbeat stays as long as a file of its own"


def test_a_session_names_its_episode_unless_it_is_being_played(tmp_path):
    one, other = Parking(str(tmp_path)), Parking(str(tmp_path))
    assert one.key("s") == other.key("s") != one.key("t")
    one.saved.write(one.key("s"), b"", soon(), "taken")
    assert one.key("s") != other.key("s")
    assert len({one.key("") for _ in range(4)}) == len({Parking().key("s") for _ in range(4)}) == 4


async def test_a_save_that_is_cancelled_leaves_no_file_later(tmp_path, monkeypatch):
    place = Parking(str(tmp_path))
    write = SavedEpisodes.write

    def slowly(*given):
        time.sleep(0.2)
        write(*given)

    monkeypatch.setattr(SavedEpisodes, "write", slowly)
    saving = asyncio.create_task(place.save(KEY, parked(), 60))
    await asyncio.sleep(0.05)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    await place.ended(KEY)
    await asyncio.sleep(0.3)
    assert files(tmp_path) == set()


def test_a_folder_without_room_for_a_heartbeat_is_reported(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(Path, "touch", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    SavedEpisodes(tmp_path, shared=True).write(KEY, b"", soon(), "taken")
    assert "no heartbeat can be written: No space left on device" in caplog.text


def test_a_forked_child_is_an_owner_of_its_own(place, monkeypatch):
    place.write(KEY, b"", soon(), "taken")
    other = str(replace(Owner.parse(current()), pid=1))
    monkeypatch.setattr(owners, "_owner", lambda pid: other)
    monkeypatch.setattr("agentrl.episode.saved.current", lambda: other)
    place.write("1" * 32, b"", soon(), "taken")
    assert other in {path.name for path in place.folder.iterdir()}
