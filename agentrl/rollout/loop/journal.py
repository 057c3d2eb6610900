"""The journal of a buffer: an SQLite file with a row for each group, and the episodes of the groups that are not gone.

The trainer's checkpoint has the groups that are not gone (`GroupBuffer.state`): a run is exact without a journal. With
a journal, the ended episodes of these groups survive a crash, and are not played again. The table `groups` has a row
about the end of each group, for `sqlite3 journal.db` after the run.

A thread writes transactions of many changes, so the loop does not wait for the disk. The file is in WAL mode, and
locked while open, so network file systems work, too. On a file system without locks, a warning is logged. After a kill
the last transaction is missing or complete.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pickle
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from agentrl._util.own_files import check_own
from agentrl.errors import ConfigError
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger("agentrl")

Place: TypeAlias = tuple[int, int, int]
"""A group, as three numbers: the number of the group, and the row and the epoch of the task."""
GroupState: TypeAlias = Literal["playing", "waiting", "finished", "trained", "dropped"]
Change: TypeAlias = tuple[str, Sequence[Any]]
"""A change of the database: an SQL statement and its values."""

_VERSION = 1
_FREE = "free some disk, or name a folder that can be written"
_NOT_ABOUT_LOCKS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_PAUSE_S = 0.02
"""Seconds for which changes are collected in a transaction."""
_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE groups (
    number INTEGER PRIMARY KEY, row INTEGER, epoch INTEGER, state TEXT, attempts INTEGER DEFAULT 0, reason TEXT,
    step INTEGER, at REAL
);
CREATE TABLE episodes (
    number INTEGER, member INTEGER, row INTEGER, epoch INTEGER, version INTEGER, data BLOB,
    PRIMARY KEY (number, member)
);
"""
_SET = (
    "INSERT INTO groups (number, row, epoch, state, at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (number) DO UPDATE SET state = excluded.state, at = excluded.at"
)
_REVIVE = "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, 'waiting', ?, '', NULL, ?)"
_AGAIN = "UPDATE groups SET attempts = attempts + 1 WHERE number = ?"
_GONE = "UPDATE groups SET state = ?, reason = ?, step = ?, at = ? WHERE number = ?"
_FORGET = "DELETE FROM episodes WHERE number = ? AND member = ?"
_KEEP = "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?, ?)"
_LEAVE = "DELETE FROM episodes WHERE number = ? AND version > ?"
_PRUNE = "DELETE FROM episodes WHERE number IN (SELECT number FROM groups WHERE state IN ('trained', 'dropped'))"


class Journal:
    """An open journal file. The file is created if missing. Call `close` at the end.

    Raises ConfigError if another process writes the file, if the file is damaged, or if other users can write to the
    file: episodes are pickled, and unpickling a file can run code. Methods raise ConfigError after a failed write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unsaved = 0
        """The number of episodes that cannot be pickled. After a crash these episodes are played again."""
        self._marks: dict[tuple[int, int], tuple[object, float | None]] = {}
        """(group number, member) -> the episode and the reward that are saved, so that no episode is saved twice."""
        self._saved_step = -1
        self._open()
        self._failed: Exception | None = None
        self._queue: SimpleQueue[Change | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="agentrl-journal", daemon=True)
        self._thread.start()

    def note(self, group: Place, state: GroupState) -> None:
        """Record the present state of a group."""
        self._put(_SET, (*group, state, time.time()))
        if state == "waiting":
            self._put(_AGAIN, (group[0],))

    def gone(self, group: Place, state: Literal["trained", "dropped"], step: int, reason: str = "") -> None:
        """Record that a group is gone. The episodes of the group are deleted, except those that the last checkpoint may
        need."""
        number = group[0]
        self._put(_GONE, (state, reason, step, time.time(), number))
        self._put(_LEAVE, (number, self._saved_step))
        for key in [key for key in self._marks if key[0] == number]:
            del self._marks[key]

    def keep(self, group: Place, index: int, member: Trajectory, version: int) -> None:
        """Save an episode of a group. `version` is the version of the newest weights that may have sampled the
        episode."""
        key, mark = (group[0], index), (member, member.reward)
        before = self._marks.get(key)
        if before is not None and before[0] is mark[0] and before[1] == mark[1]:
            return
        self._marks[key] = mark
        try:
            data = pickle.dumps(member, pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - the pickle boundary: objects of an Env raise anything
            self.unsaved += 1
            return
        self._put(_KEEP, (group[0], index, group[1], group[2], version, data))

    def forget(self, group: Place, index: int) -> None:
        """Delete the saved episode of a member that will be played again."""
        self._marks.pop((group[0], index), None)
        self._put(_FORGET, (group[0], index))

    def saved(self, step: int) -> None:
        """Record that a checkpoint of this step is complete. The episodes of groups that are gone are deleted."""
        self._saved_step = step
        self._put(_PRUNE, ())

    def rewind(self, number: int, step: int, groups: Iterable[tuple[Place, int]]) -> dict[Place, dict[int, Trajectory]]:
        """Return to the time before group `number` was drawn and after `step` was trained. `groups` are the groups that
        were not gone at that time, each with the number of returns to the buffer.

        Returns the usable episodes, by group and member. An episode is usable if no weights of later steps have sampled
        its tokens. Episodes of groups from `number` on are usable if the same tasks are drawn again.
        """
        self._saved_step = step
        self._marks.clear()
        self._put("DELETE FROM groups WHERE number >= ?", (number,))
        for place, attempts in groups:
            self._put(_REVIVE, (*place, attempts, time.time()))
        self._put("DELETE FROM episodes WHERE version > ?", (step,))
        self._put(_PRUNE, ())
        self.flush()
        return self._episodes()

    def flush(self) -> None:
        """Wait until all changes are in the file. Raises ConfigError after a failed write."""
        done = threading.Event()
        self._queue.put(done)
        while not done.wait(0.2):
            if not self._thread.is_alive():
                break
        self._check()

    def close(self) -> None:
        """Write the pending changes, and unlock the file."""
        self._queue.put(None)
        self._thread.join()
        self._database.close()

    def _put(self, statement: str, values: Sequence[Any]) -> None:
        self._check()
        self._queue.put((statement, values))

    def _check(self) -> None:
        if self._failed is not None:
            raise ConfigError(
                f"{self.path}: the journal cannot be written ({self._failed}); free some disk, and resume"
            )

    def _open(self) -> None:
        try:
            if not self.path.exists():
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            check_own(self.path, str(self.path))
        except OSError as exc:
            raise ConfigError(f"{self.path}: the journal cannot be made ({exc.strerror}); {_FREE}") from exc
        try:
            about = self._begin("")
        except sqlite3.DatabaseError as exc:
            if _has_locks(self.path.parent):
                raise _refusal(self.path, exc) from exc
            log.warning("%s cannot be locked on its file system: let no other process write there", self.path)
            try:
                about = self._begin("?nolock=1")
            except sqlite3.DatabaseError as exc:
                raise _refusal(self.path, exc) from exc
        if about.get("version") != str(_VERSION):
            self._database.close()
            raise ConfigError(f"{self.path}: a journal of another version of agentrl; delete it: episodes are replayed")
        self.id = about["id"]
        """The id of this file, which checkpoints store."""

    def _begin(self, query: str) -> dict[str, str]:
        """Open the database, create missing tables, and return the entries of the table `about`."""
        address = f"{self.path.absolute().as_uri()}{query}"
        self._database = sqlite3.connect(address, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("BEGIN EXCLUSIVE")
            if not self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone():
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._database.execute(statement)
                about = {"version": str(_VERSION), "id": uuid4().hex}
                self._database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            about = dict(self._database.execute("SELECT key, value FROM about"))
            self._database.execute("COMMIT")
        except sqlite3.DatabaseError:
            self._database.close()
            raise
        return about

    def _write(self) -> None:
        ended = False
        while not ended:
            changes, waiting = [self._queue.get()], []
            time.sleep(_PAUSE_S if not isinstance(changes[0], threading.Event) and changes[0] is not None else 0)
            while not self._queue.empty():
                changes.append(self._queue.get())
            statements = [change for change in changes if isinstance(change, tuple)]
            waiting = [change for change in changes if isinstance(change, threading.Event)]
            ended = None in changes
            if self._failed is None:
                self._commit(statements)
            for event in waiting:
                event.set()

    def _commit(self, changes: Iterable[Change]) -> None:
        try:
            self._database.execute("BEGIN")
            for statement, values in changes:
                self._database.execute(statement, values)
            self._database.execute("COMMIT")
        except sqlite3.Error as exc:
            self._failed = exc

    def _episodes(self) -> dict[Place, dict[int, Trajectory]]:
        episodes: dict[Place, dict[int, Trajectory]] = {}
        query = "SELECT number, row, epoch, member, data FROM episodes"
        for number, row, epoch, member, data in self._database.execute(query):
            try:
                episodes.setdefault((number, row, epoch), {})[member] = pickle.loads(data)
            except Exception:  # noqa: BLE001 - the pickle boundary: classes that changed raise anything
                self.unsaved += 1
        return episodes


def _has_locks(folder: Path) -> bool:
    """Whether a file in the folder can be locked. Some network file systems have no locks."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        return exc.errno in _NOT_ABOUT_LOCKS
    return True


def _refusal(path: Path, exc: sqlite3.DatabaseError) -> ConfigError:
    if "locked" in str(exc):
        return ConfigError(f"{path}: another process writes this journal; wait for its end, or end it")
    if exc.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return ConfigError(f"{path}: not a readable journal ({exc}); delete it: the episodes in it are played again")
    return ConfigError(f"{path}: the journal cannot be opened ({exc}); {_FREE}")


def newest_weights(member: Trajectory, default: int) -> int:
    """The version of the newest weights that sampled an episode; `default` if the engine reports no version."""
    versions = member.weight_versions
    named = [int(version) for version in versions if version.isdecimal()]
    return max(named) if named and len(named) == len(versions) else default


def oldest_weights(members: Iterable[Trajectory | None], default: int) -> int:
    """The version of the oldest weights that sampled any of these episodes; `default` if the engine reports no
    version."""
    named = [version for member in members if member is not None for version in member.weight_versions]
    return min([default, *(int(version) for version in named if version.isdecimal())])
