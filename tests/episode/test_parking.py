"""The parking place itself: tickets, files, times, folders."""

from __future__ import annotations

import asyncio
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl import ConfigError, Env
from agentrl.engine import Generation
from agentrl.episode.parking import Parking, _private_folder, _saved_privately
from agentrl.errors import ResumeError
from tests.episode.parked_files import files, parked

CLOSED: list[Env] = []


class Quiet(Env):
    async def close(self):
        await asyncio.sleep(0)
        CLOSED.append(self)


@pytest.fixture(autouse=True)
def _none_closed():
    CLOSED.clear()


async def test_a_file_is_written_whole_and_read_once(tmp_path):
    place = Parking(str(tmp_path))
    before = parked(saved={"files": b"x" * 1000})
    ticket = await place.park(before, 60)
    assert ticket == {
        "version": 10,
        "how": "snapshot",
        "key": ticket["key"],
        "until": pytest.approx(time.time() + 60, 2),
    }
    assert len(pickle.dumps(ticket)) < 200
    assert files(tmp_path) == {f"{ticket['key']}.parked"}
    other = Parking(str(tmp_path))
    after = await other.take(ticket)
    assert (after.how, after.episode.played_s, after.saved, after.rng) == ("snapshot", 1.5, before.saved, before.rng)
    assert after.episode.trajectory.to_json() == before.episode.trajectory.to_json()
    assert after.episode.trajectory.turns == before.episode.trajectory.turns, (
        "the engine's own meta as well: a trainer replays it"
    )
    after.episode.trajectory.append_model(Generation([7], [-0.5], "stop"))
    assert after.episode.trajectory.prefix_breaks == 0
    with pytest.raises(ResumeError, match="being played in this process already"):
        await place.take(ticket)
    await other.ended(ticket["key"])
    assert files(tmp_path) == set()
    with pytest.raises(ResumeError, match="gone: expired, or used before"):
        await place.take(ticket)
    await other.close()
    assert list(tmp_path.iterdir()) == []


async def test_of_two_that_take_at_once_one_gets_it(tmp_path):
    place = Parking(str(tmp_path))
    for _ in range(20):
        ticket = await place.park(parked(), 60)
        found = await asyncio.gather(*(place.take(ticket) for _ in range(4)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in found) == ["Parked"] + ["ResumeError"] * 3


async def test_alive_is_the_same_env_until_its_time_is_over():
    place, env = Parking(), Quiet()
    ticket = await place.park(parked("alive", env), 60)
    assert (await place.take(ticket)).env is env
    with pytest.raises(ResumeError, match="not open here"):
        await place.take(ticket)
    assert CLOSED == []
    ticket = await place.park(parked("alive", env), 0.05)
    await asyncio.sleep(0.1)
    assert [env] == CLOSED
    with pytest.raises(ResumeError, match="not open here"):
        await place.take(ticket)


async def test_taken_in_time_is_not_closed_behind_ones_back():
    place, env = Parking(), Quiet()
    await place.take(await place.park(parked("alive", env), 0.05))
    await asyncio.sleep(0.1)
    assert CLOSED == []


async def test_close_waits_for_all_envs_one_that_fails_included(caplog):
    class Fails(Quiet):
        async def close(self):
            await super().close()
            raise RuntimeError("stuck")

    place = Parking()
    for env in (Quiet(), Fails(), Quiet()):
        await place.park(parked("alive", env), 60)
    await place.close()
    assert len(CLOSED) == 3
    assert "closing Fails failed" in caplog.text


async def test_expired(tmp_path):
    place = Parking(str(tmp_path))
    ticket = await place.park(parked(), 0.02)
    await asyncio.sleep(0.05)
    with pytest.raises(ResumeError, match=r"longer than parking\.keep_s"):
        await place.take(ticket)
    assert files(tmp_path) == set()


async def test_expired_files_are_swept(tmp_path):
    (tmp_path / "other.txt").touch()
    os.utime(tmp_path / "other.txt", (0, 0))
    for name, age in (("dead.unfinished", 7200), ("now.unfinished", 5)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    place = Parking(str(tmp_path))
    await place.park(parked(), 0.01)
    await asyncio.sleep(0.05)
    await place.close()  # as another process would, a minute later
    ticket = await place.park(parked(), 60)
    assert files(tmp_path) == {"other.txt", "now.unfinished", f"{ticket['key']}.parked"}


async def test_what_cannot_be_pickled_or_written_leaves_nothing(tmp_path, monkeypatch):
    place = Parking(str(tmp_path))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        await place.park(parked(saved=lambda: 0), 60)

    def replace(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", replace)
    with pytest.raises(OSError, match="No space left"):
        await place.park(parked(), 60)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"agentrl parked 1\n", "written by another version"),
        (b"", "written by another version"),
        (b"agentrl parked 10\n\x80garbage", "cannot be read: "),
        (b"agentrl parked 10\ncno_such_module\nThing\n.", "cannot be read: ModuleNotFoundError"),
    ],
)
async def test_a_file_that_is_not_ours(tmp_path, written, reason):
    place = Parking(str(tmp_path))
    ticket = await place.park(parked(), 60)
    path = tmp_path / f"{ticket['key']}.parked"
    path.write_bytes(written)
    os.utime(path, (time.time() + 60,) * 2)
    with pytest.raises(ResumeError, match=reason):
        await place.take(ticket)


@pytest.mark.parametrize(
    ("ticket", "reason"),
    [
        ({}, "version None; this agentrl reads 10"),
        ({"version": 1, "key": "0" * 32}, "version 1"),
        ({"version": 10}, "names nothing: None"),
        ({"version": 10, "key": 7}, "names nothing: 7"),
        ({"version": 10, "key": "../secret"}, "names nothing: '../secret'"),
        ({"version": 10, "key": "0" * 32, "how": "replay"}, "gone: expired, or used before"),
        ({"version": 10, "key": "0" * 32, "how": "alive"}, "not open here"),
    ],
)
async def test_a_ticket_that_is_none(tmp_path, ticket, reason):
    with pytest.raises(ResumeError, match=reason):
        await Parking(str(tmp_path)).take(ticket)


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    Parking(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert stat.S_IMODE(_private_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=r"others can write to it, .* `chmod go-w"):
        Parking(str(tmp_path))


def test_somebody_elses_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    monkeypatch.setattr("agentrl._util.own_files._new_file_beside", lambda path: None)
    with pytest.raises(ConfigError, match="name a folder of your own"):
        Parking(str(tmp_path))


def test_the_private_folder_goes_with_the_process():
    code = "from agentrl.episode.parking import _private_folder as f; f().joinpath('x.parked').touch(); print(f())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip()
    assert not os.path.exists(done.stdout.strip())


def test_threads_that_come_first_share_one_folder(monkeypatch):
    """As the first aborted episodes of a process do: each is written by a thread."""
    made = []

    def slowly(prefix):
        time.sleep(0.05)
        made.append(tempfile.gettempdir())
        return mkdtemp(prefix=prefix)

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", slowly)
    _private_folder.cache_clear()
    _saved_privately.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda parking: parking.saved.folder, [Parking() for _ in range(4)]))
    assert len(folders) == len(made) == 1


async def test_the_end_of_an_episode_without_a_file_needs_no_thread(tmp_path, monkeypatch):
    """As the end of nearly every episode is."""
    place = Parking(str(tmp_path))
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: pytest.fail("a thread"))
    await place.ended(place.key("a session"))
    await place.give_back(place.key("a session"))
