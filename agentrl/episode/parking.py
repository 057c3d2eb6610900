"""Parking: an aborted episode is kept until its host sends it again.

How it is kept depends on what the Env class declares:

- "snapshot", if it has `snapshot` and `restore`: its state is written to a file, and the Env is closed
- "replay", if it is `deterministic`: the Env is closed, and the recorded actions are executed again on return
- "alive" otherwise: the Env stays open, in this process and event loop, for a bounded time
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import pickle
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

from agentrl._util.boundary import at_boundary
from agentrl.env.env import Env, close_env, runtime
from agentrl.episode.options import ParkFn
from agentrl.episode.state import EpisodeState, Parked, ResumeMethod
from agentrl.errors import ConfigError, ResumeError
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

log = logging.getLogger("agentrl")

_unparked: set[tuple[type[Env], type[Exception]]] = set()
"""Env classes and errors for which a warning was logged."""

VERSION = 7
"""Version of tickets and files. An episode of another version restarts."""

_HEADER = b"agentrl parked %d\n" % VERSION
_PARKED, _UNFINISHED = ".parked", ".unfinished"
_SWEEP_S = 60.0
_WRITING_S = 3600.0
"""Writing a file always takes less time than this."""


def resume_method(cls: type[Env]) -> ResumeMethod:
    """How aborted episodes of an Env class are kept and resumed."""
    if cls.snapshot is not Env.snapshot:
        return "snapshot"
    return "replay" if cls.deterministic else "alive"


async def hand_over(
    park: ParkFn | None, env: Env, state: EpisodeState, returning: Parked | None, *, timeout: float
) -> bool:
    """Give an aborted episode to `park`. Return whether the Env stays open. An error here does not fail the episode."""
    begun = state.trajectory.length or runtime(env).before_close is not None
    if park is None or not begun:
        return False
    if errors := runtime(env).tool_errors:
        state.trajectory.info["tool_errors"] = dict(errors)
    try:
        with at_boundary("step"):
            parked = returning or await _pack(env, state, timeout)
            await park(parked)
    except Exception as exc:  # noqa: BLE001 - the parking boundary: the episode restarts instead
        _note_unparked(env, state.trajectory, exc)
        return False
    return parked.env is not None


async def _pack(env: Env, state: EpisodeState, timeout: float) -> Parked:
    how = resume_method(type(env))
    saved = await runtime(env).hook(env.snapshot, timeout=timeout) if how == "snapshot" else None
    return Parked(how, state, runtime(env).rng.getstate(), env if how == "alive" else None, saved)


def _note_unparked(env: Env, trajectory: Trajectory, exc: Exception) -> None:
    trajectory.info["not_parked"] = str(exc)
    if (type(env), type(exc)) not in _unparked:
        _unparked.add((type(env), type(exc)))
        log.warning(
            "an aborted episode of %s cannot be kept, and restarts. First one: %s", type(env).__name__, str(exc)
        )


class Parking:
    """Keeps aborted episodes of one event loop. Each has a ticket: small, picklable, and good for one use.

    Open Envs are kept in memory, and closed when their time is over. Everything else is written to files, which any
    loop or process with access to the folder can take. `folder` is created if it is missing. The default is a temporary
    folder of this process, removed at its end. Raises ConfigError for a folder that others can write to, because
    unpickling a file can run code.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._given = None if folder is None else _own_folder(folder)
        self._alive: dict[str, tuple[Parked, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[Any]] = set()
        self._noted: dict[str, Mapping[str, JSON]] = {}
        self._swept = float("-inf")

    async def park(self, parked: Parked, seconds: float) -> dict[str, JSON]:
        """Keep an episode for some seconds, and return its ticket.

        An open Env belongs to this object from then on. Raises the errors of pickle and of the disk; then nothing is
        kept.
        """
        key, until = uuid4().hex, time.time() + seconds
        if parked.how == "alive":  # no await here, so that a cancellation leaves the Env with one owner
            timer = asyncio.get_running_loop().call_later(seconds, self._expire, key)
            self._alive[key] = (parked, timer)
        else:
            await asyncio.to_thread(self._write, key, parked, until)
        return {"version": VERSION, "how": parked.how, "key": key, "until": until}

    async def take(self, ticket: Mapping[str, JSON]) -> Parked:
        """The episode of a ticket, which is used up. The caller owns `Parked.env` and must close it.

        Raises ResumeError if there is none.
        """
        key = _key(ticket)
        if ticket.get("how") != "alive":
            return await asyncio.to_thread(self._read, key)
        if key not in self._alive:
            raise ResumeError("its environment is not open here: its time was up, or it is in another loop or process")
        parked, timer = self._alive.pop(key)
        timer.cancel()
        return parked

    def note(self, name: str, ticket: Mapping[str, JSON], seconds: float) -> None:
        """Remember the ticket of `name` for some seconds, in case it does not come back with its owner."""

        def forget() -> None:
            if self._noted.get(name) is ticket:
                del self._noted[name]

        if name:
            self._noted[name] = ticket
            asyncio.get_running_loop().call_later(seconds, forget)

    def noted(self, name: str) -> Mapping[str, JSON] | None:
        """The ticket of `name`, which is then forgotten."""
        return self._noted.pop(name, None)

    async def close(self) -> None:
        """Close the parked Envs. Files stay until they expire."""
        for key, (_, timer) in list(self._alive.items()):
            timer.cancel()
            self._expire(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _expire(self, key: str) -> None:
        parked, _ = self._alive.pop(key)
        if parked.env is not None:
            closing = asyncio.get_running_loop().create_task(close_env(parked.env))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _write(self, key: str, parked: Parked, until: float) -> None:
        self._sweep()
        path = self._path(key)
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            unfinished.write_bytes(_HEADER + pickle.dumps(parked))
            os.utime(unfinished, (until, until))
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _read(self, key: str) -> Parked:
        path = self._path(key)
        try:
            expired = path.stat().st_mtime < time.time()
            written = path.read_bytes()
            path.unlink()  # if two read the same file, one of them fails here
        except FileNotFoundError:
            raise ResumeError("its saved state is gone: expired, or used before") from None
        except OSError as exc:
            raise ResumeError(f"its saved state cannot be read: {exc}") from exc
        if expired:
            raise ResumeError("it was parked for longer than park_s")
        if not written.startswith(_HEADER):
            raise ResumeError("its saved state was written by another version of agentrl")
        try:
            return cast(Parked, pickle.loads(written[len(_HEADER) :]))
        except Exception as exc:  # the pickle boundary: classes that changed raise anything
            raise ResumeError(f"its saved state cannot be read: {type(exc).__name__}: {exc}") from exc

    def _sweep(self) -> None:
        """Remove expired files, and partial files of processes that died while writing."""
        now = time.time()
        if now - self._swept < _SWEEP_S:
            return
        self._swept = now
        for pattern, allowed in ((f"*{_PARKED}", 0.0), (f"*{_UNFINISHED}", _WRITING_S)):
            for path in self._folder.glob(pattern):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime + allowed < now:
                        path.unlink()

    @property
    def _folder(self) -> Path:
        if self._given is not None:
            return self._given
        with _making:  # threads write files: two at once would each make a folder
            return _private_folder()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_PARKED}"


def _key(ticket: Mapping[str, JSON]) -> str:
    """The key in a ticket. Raises ResumeError if it is invalid: tickets come back in metadata, which others may
    change."""
    if ticket.get("version") != VERSION:
        raise ResumeError(f"its ticket has version {ticket.get('version')!r}; this agentrl reads {VERSION}")
    try:
        return UUID(hex=ticket["key"]).hex
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ResumeError(f"its ticket names nothing: {ticket.get('key')!r:.80}") from None


_making = threading.Lock()


@cache
def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="agentrl-parked-")  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _own_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as exc:
        raise ConfigError(f"park_folder {name}: {exc.strerror}; name a folder of your own") from exc
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"park_folder {name}: others can write to it, and files that are read from there can run code; "
            f"name a folder of your own, or run `chmod go-w {name}`"
        )
    return folder
