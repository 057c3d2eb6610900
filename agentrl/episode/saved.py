"""Files of saved episodes. At most one process owns a file, even if processes on several nodes share the folder.

- KEY.parked: any process can take the episode, by renaming the file. Only one process succeeds
- KEY.OWNER.taken: the owner plays the episode
- KEY.OWNER.ended: the owner has ended the episode, and the host may not have the result yet

The owner deletes a file that is no longer needed. If the owner dies first, another process can take the file. An owner
on another machine counts as dead if its heartbeat file in the folder was not touched for `dead_s` seconds.

A file's mtime is the time at which the file expires, by the clock of the folder's file server. So the machines' clocks
may differ.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias
from uuid import uuid4

from agentrl._util.owners import Heartbeat, Owner, current, folder_time, is_dead, silent_s
from agentrl.errors import ResumeError

SavedState: TypeAlias = Literal["parked", "taken", "ended"]
log = logging.getLogger("agentrl")

_UNFINISHED = "unfinished"
_SWEEP_S = 60.0
_WRITING_S = 3600.0
"""Maximum number of seconds for writing a file."""
_BEATS = 4
"""Number of heartbeats in `dead_s` seconds."""


class OwnedEpisodeError(ResumeError):
    """Another process, which seems to be alive, plays the episode."""


class SavedEpisodes:
    """The files in a folder, seen from this process. All methods block, and may be called from any thread.

    `shared`: other processes use the folder, too. A process on another machine counts as dead after `dead_s` seconds
    without a heartbeat. For a process on the same machine and in the same pid namespace, its death is noticed at once.
    Methods raise OSError.
    """

    def __init__(self, folder: Path, *, shared: bool = False, dead_s: float = 60.0) -> None:
        self.folder, self.shared, self.dead_s = folder, shared, dead_s
        self._states = dict[str, SavedState]()
        self._heart: Heartbeat | None = None
        self._lock = Lock()
        self._swept = float("-inf")
        self._ahead_s = 0.0
        """Seconds by which the clock of the folder is ahead of this machine's."""

    def plays(self, key: str) -> bool:
        """Whether this process plays an episode."""
        return self._states.get(key) == "taken"

    def write(self, key: str, data: bytes, until: float, state: SavedState) -> None:
        """Write an episode's file, in place of an earlier file. The file expires at `until`, in Unix time.

        Raises ResumeError, and writes no file, if another process has taken the episode meanwhile.
        """
        self._prepare()
        unfinished = self.folder / f"{key}.{uuid4().hex}.{_UNFINISHED}"
        try:
            unfinished.write_bytes(data)
            self._set_expiry(unfinished, until)
            before = self._states.get(key)
            if before and not self._path(key, before).exists():
                del self._states[key]
                raise ResumeError(
                    f"another process has resumed it, because this one showed no sign of life for {self.dead_s:g} s"
                )
            file = self._path(key, before or state)
            unfinished.replace(file)
            if before and before != state:
                file.rename(self._path(key, state))  # a kill here leaves a single file, never a second, older state
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._states[key] = state
        if state == "parked":
            del self._states[key]

    def take(self, key: str, until: float) -> bytes:
        """The content of an episode's file. This process then owns the file, which expires at `until`.

        Raises ResumeError for a missing file, and OwnedEpisodeError if a process that seems to live plays the episode.
        """
        self._prepare()
        with self._lock:  # of two coroutines of this process, the first gets the episode
            if self.plays(key):
                raise ResumeError("it is being played in this process already")
            self.remove(key, "ended")
            self._states[key] = "taken"
        target = self._path(key, "taken")
        try:
            while True:
                path = self._found(key)
                try:
                    expired = path.stat().st_mtime < time.time() + self._ahead_s
                    path.rename(target)
                except FileNotFoundError:
                    continue  # another process was faster
                break
            if expired:
                raise ResumeError("it was parked for longer than parking.keep_s")
            data = target.read_bytes()
            self._set_expiry(target, until)
        except BaseException as exc:
            if not isinstance(exc, OwnedEpisodeError):
                target.unlink(missing_ok=True)
            del self._states[key]
            raise
        return data

    def remove(self, key: str, state: SavedState = "taken") -> bool:
        """Delete the file of an episode in the state `state`. Returns False if this process no longer owns the file."""
        if self._states.get(key) != state:
            return False
        del self._states[key]
        try:
            self._path(key, state).unlink()
        except FileNotFoundError:
            return False
        return True

    def give_back(self, key: str) -> None:
        """Allow any process to take the file of an episode, if this process still owns the file."""
        if self.plays(key):
            with suppress(FileNotFoundError):
                self._path(key, "taken").rename(self._path(key, "parked"))
            del self._states[key]

    def close(self) -> None:
        """Remove the files of dead processes. Also remove this process's heartbeat, unless this process still owns
        files."""
        if self._heart is not None and not self._states:
            self._heart.stop()
            self._heart.file.unlink(missing_ok=True)
            self._heart = None
        self._swept = float("-inf")
        self._sweep()

    def _prepare(self) -> None:
        """Write a heartbeat before this process owns a file, and remove the files of dead processes."""
        with self._lock:
            if self.shared and (
                self._heart is None or self._heart.file.name != current()
            ):  # a forked child is a different owner
                self._heart = Heartbeat(self.folder, self.dead_s / _BEATS, self._warn)
                self._heart.start()
        self._sweep()

    def _warn(self, exc: OSError) -> None:
        log.warning("parking.folder %s: no heartbeat can be written: %s", self.folder, exc.strerror)

    def _found(self, key: str) -> Path:
        """The file of an episode that this process may take. Raises ResumeError."""
        free = self._path(key, "parked")
        if free.exists():
            return free
        for path in self.folder.glob(f"{key}.*") if self.shared else ():
            owner, state = _owner(path), path.suffix[1:]
            if not owner:
                continue
            if self._dead(owner):
                return path
            if state == "taken":
                raise OwnedEpisodeError(f"{owner.partition('~')[0]}, process {owner.split('~')[3]}, is playing it")
        raise ResumeError("its saved state is gone: expired, or used before")

    def _dead(self, owner: str) -> bool:
        dead = is_dead(owner)
        if dead is None:
            silent = silent_s(self.folder, owner)
            return silent is None or silent > self.dead_s
        return dead

    def _set_expiry(self, file: Path, until: float) -> None:
        os.utime(file, (until + self._ahead_s, until + self._ahead_s))

    def _sweep(self) -> None:
        """Remove expired files, unless a living process owns the file, and the files of dead processes."""
        if time.monotonic() - self._swept < _SWEEP_S:
            return
        self._swept = time.monotonic()
        if self.shared:
            with suppress(OSError):  # a full disk
                self._ahead_s = folder_time(self.folder) - time.time()
        self._remove_expired(time.time() + self._ahead_s)

    def _remove_expired(self, now: float) -> None:
        owning = {current()}
        for path, age in self._files(now):
            owner = _owner(path)
            if owner and (age <= 0 or not self._dead(owner)):
                owning.add(owner)
            elif (age > 0 and (owner or path.suffix == ".parked")) or (age > _WRITING_S and _is_unfinished(path)):
                path.unlink(missing_ok=True)
        for path, _ in self._files(now):
            if Owner.parse(path.name) and path.name not in owning and self._dead(path.name):
                path.unlink(missing_ok=True)

    def _files(self, now: float) -> Iterator[tuple[Path, float]]:
        """Yield each file in the folder with the number of seconds since it expired (negative before)."""
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                yield path, now - path.stat().st_mtime

    def _path(self, key: str, state: SavedState) -> Path:
        return self.folder / (f"{key}.parked" if state == "parked" else f"{key}.{current()}.{state}")


def _owner(path: Path) -> str:
    """The owner's id in a file's name. "" without an owner."""
    return path.stem.partition(".")[2] if path.suffix in (".taken", ".ended") else ""


def _is_unfinished(path: Path) -> bool:
    return path.suffix == f".{_UNFINISHED}"
