"""Parking: an aborted episode is kept until its host (the trainer) sends the episode again.

The method depends on the Env class:

- "snapshot" with `snapshot` and `restore`: the state is written to a file, and the Env is closed. A running machine in
  the state (`MachineSnapshot`) is removed when no file needs the machine
- "replay" with `deterministic`: the Env is closed, and the recorded actions are executed again on return
- "alive" otherwise: the Env stays open, in this process and event loop, for a bounded time
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

from agentrl._util.boundary import FailedError, at_boundary
from agentrl._util.own_files import check_own
from agentrl.env.env import Env, close_env, is_agent, runtime
from agentrl.episode.machines import machines_in, release
from agentrl.episode.options import ParkFn
from agentrl.episode.saved import OwnedEpisodeError, SavedEpisodes, SavedState
from agentrl.episode.state import EpisodeState, Parked, ResumeMethod
from agentrl.errors import ConfigError, Failure, InfraError, ResumeError
from agentrl.sandbox import MachineSnapshot
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

log = logging.getLogger("agentrl")

_unparked: set[tuple[type[Env], type[Exception]]] = set()
"""Pairs of Env class and exception class for which a warning was logged."""

VERSION = 10
"""Version of the format of tickets and files. An episode in another version restarts."""

_HEADER = b"agentrl parked %d\n" % VERSION
_SESSIONS = UUID("5cf1ee42-9c5a-4f0b-8b5e-2f1f6c9e1d57")
"""The UUID namespace of keys that are computed from session ids."""


def resume_method(cls: type[Env]) -> ResumeMethod:
    """The method for keeping and resuming the aborted episodes of an Env class."""
    if cls.snapshot is not Env.snapshot:
        return "snapshot"
    return "replay" if cls.deterministic else "alive"


async def hand_over(
    park: ParkFn | None, env: Env, state: EpisodeState, returning: Parked | None, *, timeout: float
) -> bool:
    """Pass an aborted episode to `park`. Return whether the Env stays open. An error does not fail the episode."""
    has_begun = state.trajectory.segment.length or runtime(env).before_close is not None
    if park is None or not has_begun:
        return False
    state.trajectory.info.update(runtime(env).info())
    try:
        with at_boundary("step"):
            parked = returning or await _pack(env, state, timeout)
            await park(parked)
    except Exception as exc:  # noqa: BLE001 - the parking boundary: the episode restarts instead
        _note_unparked(env, state.trajectory, exc)
        return False
    return parked.env is not None


async def save_state(save: ParkFn | None, env: Env, state: EpisodeState, *, timeout: float) -> None:
    """Pass the state of a running episode to `save`. Raises FailedError if another process has taken the episode."""
    if save is None or is_agent(type(env)) or resume_method(type(env)) == "alive":
        return
    try:
        with at_boundary("step"):
            await save(await _pack(env, state, timeout))
    except ResumeError as exc:
        raise FailedError(Failure.of(InfraError(str(exc)), "step")) from exc
    except Exception as exc:  # noqa: BLE001 - the parking boundary: the episode goes on without it
        state.trajectory.info["not_saved"] = str(exc)


async def _pack(env: Env, state: EpisodeState, timeout: float) -> Parked:
    how = resume_method(type(env))
    saved = await runtime(env).hook(env.snapshot, timeout=timeout) if how == "snapshot" else None
    rng, kept_open = runtime(env).rng.getstate(), env if how == "alive" else None
    return Parked(how, state, rng, kept_open, saved, machines_in(saved))


def _note_unparked(env: Env, trajectory: Trajectory, exc: Exception) -> None:
    trajectory.info["not_parked"] = str(exc)
    if (type(env), type(exc)) not in _unparked:
        _unparked.add((type(env), type(exc)))
        log.warning(
            "an aborted episode of %s cannot be kept, and restarts. First one: %s", type(env).__name__, str(exc)
        )


class Parking:
    """Keeps the aborted episodes of one event loop. Each episode has a ticket: small, JSON, and valid for a single use.

    Open Envs are kept in memory, and closed when their time is over. Other episodes are written to files in `folder`,
    which is created if missing. Every process with access can take the folder's episodes (see `SavedEpisodes`, also for
    `dead_s`). The default is a temporary folder, removed at the end of this process. Raises ConfigError if other users
    can write to the folder, because unpickling a file can run code.
    """

    def __init__(self, folder: str | None = None, *, dead_s: float = 60.0) -> None:
        self._store = None if folder is None else _saved(_own_folder(folder), dead_s)
        self._dead_s = dead_s
        self._alive: dict[str, tuple[Parked, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[Any]] = set()
        self._tickets: dict[str, Mapping[str, JSON]] = {}
        self._ended: dict[str, asyncio.TimerHandle] = {}
        self._machines: dict[str, tuple[MachineSnapshot, ...]] = {}
        """Key of an episode of this object -> the machines in the episode's file."""

    @property
    def shared(self) -> bool:
        """Whether other processes can take episodes from the folder."""
        return self._store is not None

    def key(self, session_id: str) -> str:
        """The key of an episode. On a shared folder the key is computed from the session id, so that any process can
        find the episode.

        If this process already plays an episode with the same session id, the key is random.
        """
        stable = uuid5(_SESSIONS, session_id).hex
        return stable if self._store and session_id and not self._store.plays(stable) else uuid4().hex

    async def park(self, parked: Parked, seconds: float, key: str = "") -> dict[str, JSON]:
        """Keep an episode for `seconds`, and return its ticket.

        The Parking object then owns the episode's open Env, and closes the Env when the time is over. Raises errors of
        pickle and OSError; after an error the episode is not kept.
        """
        key, until = key or uuid4().hex, time.time() + seconds
        if parked.how == "alive":  # no await here, so that a cancellation leaves the Env with one owner
            key = uuid4().hex
            timer = asyncio.get_running_loop().call_later(seconds, self._expire, key)
            self._alive[key] = (parked, timer)
        else:
            await asyncio.to_thread(self._write, key, parked, until, "parked", asyncio.get_running_loop())
        return {"version": VERSION, "how": parked.how, "key": key, "until": until}

    async def save(self, key: str, parked: Parked, seconds: float, state: SavedState = "taken") -> None:
        """Write the state of a running episode to a file, in case this process dies.

        Raises errors of pickle, OSError, and ResumeError if another process has taken the episode.
        """
        until, loop = time.time() + seconds, asyncio.get_running_loop()
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, key, parked, until, state, loop))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # else the file would appear after the episode has ended
            raise

    async def take(
        self, ticket: Mapping[str, JSON], seconds: float = 3600.0, stopped: Callable[[], bool] | None = None
    ) -> Parked:
        """Take the episode of a ticket, which is then used up. The caller owns `Parked.env` and must close it.

        On a shared folder the caller also owns the episode's file. The caller must park the episode again, or call
        `ended` or `give_back`. If the caller's process dies, the file stays for `seconds`. If another process owns the
        episode, the call waits for some time, in case that process is dead. Raises ResumeError for a missing episode,
        and OwnedEpisodeError if the other process lives on, or if `stopped` returns True.
        """
        key = key_of(ticket)
        if ticket.get("how") != "alive":
            return await self.take_key(key, seconds, stopped)
        if key not in self._alive:
            raise ResumeError("its environment is not open here: its time was up, or it is in another loop or process")
        parked, timer = self._alive.pop(key)
        timer.cancel()
        return parked

    async def take_key(self, key: str, seconds: float, stopped: Callable[[], bool] | None = None) -> Parked:
        """Take the episode in the file of a key. Other details are as in `take`."""
        give_up = time.monotonic() + 1.5 * self._dead_s
        while True:
            try:
                return await asyncio.to_thread(self._read, key, time.time() + seconds)
            except OwnedEpisodeError:
                if time.monotonic() > give_up or (stopped is not None and stopped()):
                    raise
                await asyncio.sleep(min(1.0, self._dead_s / 20))

    async def ended(self, key: str, parked: Parked | None = None, seconds: float = 0.0) -> None:
        """Mark an episode as ended. With `parked`, the ended episode is kept for `seconds`, in case this process dies
        before the host has the result."""
        if parked is None:
            # most episodes have no file, and a thread costs a tenth of a short episode
            removed = self.saved.plays(key) and await asyncio.to_thread(self.saved.remove, key)
            self._forget(key, needed=self.saved.shared and not removed)
            return
        await self.save(key, parked, seconds, "ended")
        self._ended[key] = asyncio.get_running_loop().call_later(seconds, self._forget_ended, key)

    async def give_back(self, key: str) -> None:
        """Allow any process to take an episode of this process, in the last saved state."""
        if self.saved.plays(key):
            await asyncio.to_thread(self.saved.give_back, key)
        self._forget(key, needed=self.saved.shared)  # otherwise no file holds the machine

    def note(self, name: str, ticket: Mapping[str, JSON], seconds: float) -> None:
        """Remember the ticket of the episode `name` for `seconds`, in case the host sends the episode without its
        ticket."""

        def forget() -> None:
            if self._tickets.get(name) is ticket:
                del self._tickets[name]

        if name:
            self._tickets[name] = ticket
            asyncio.get_running_loop().call_later(seconds, forget)

    def noted(self, name: str) -> Mapping[str, JSON] | None:
        """The ticket that `note` remembered for `name`, which is then forgotten."""
        return self._tickets.pop(name, None)

    async def close(self) -> None:
        """Close the parked Envs, and forget the ended episodes. Parked files stay until they expire."""
        for key, (_, timer) in list(self._alive.items()):
            timer.cancel()
            self._expire(key)
        for key in list(self._ended):
            self._forget_ended(key)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        if self._closing:
            await asyncio.wait(self._closing)

    def _expire(self, key: str) -> None:
        parked, _ = self._alive.pop(key)
        if parked.env is not None:
            self._begin(close_env(parked.env))

    def _forget(self, key: str, *, needed: bool) -> None:
        """Forget the machines of an episode. Unless `needed`, remove the machines."""
        machines = self._machines.pop(key, ())
        if not needed:
            self._release(machines)

    def _release(self, machines: Sequence[MachineSnapshot]) -> None:
        if machines:
            self._begin(release(machines))

    def _begin(self, closing: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget_ended(self, key: str) -> None:
        if timer := self._ended.pop(key, None):
            timer.cancel()
            self.saved.remove(key, "ended")

    def _write(
        self, key: str, parked: Parked, until: float, state: SavedState, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Write the file of an episode. Runs in a thread, which finishes even if the caller is cancelled."""
        before, needed = self._machines.get(key, ()), parked.machines
        try:
            self.saved.write(key, _HEADER + pickle.dumps(parked), until, state)
        except BaseException as exc:
            needed = before
            if isinstance(exc, ResumeError):  # the machines are in the file that another process has taken
                self._machines.pop(key, None)
            raise
        else:
            self._machines[key] = needed
            if state == "parked":
                del self._machines[key]
        finally:
            unneeded = [machine for machine in (*before, *parked.machines) if machine not in needed]
            with suppress(RuntimeError):  # the loop is closed: the machines expire by themselves
                loop.call_soon_threadsafe(self._release, unneeded)

    def _read(self, key: str, until: float) -> Parked:
        saved = self.saved
        try:
            data = saved.take(key, until)
            if not saved.shared:
                saved.remove(key)
        except OSError as exc:
            raise ResumeError(f"its saved state cannot be read: {exc}") from exc
        try:
            parked = _unpickled(data)
        except BaseException:
            saved.remove(key)
            raise
        self._machines[key] = parked.machines
        return parked

    @property
    def saved(self) -> SavedEpisodes:
        if self._store is not None:
            return self._store
        with _making:  # threads write files: two at once would each make a folder
            return _saved_privately()


def _unpickled(data: bytes) -> Parked:
    """Raises ResumeError."""
    if not data.startswith(_HEADER):
        raise ResumeError("its saved state was written by another version of agentrl")
    try:
        return cast(Parked, pickle.loads(data[len(_HEADER) :]))
    except Exception as exc:  # the pickle boundary: classes that changed raise anything
        raise ResumeError(f"its saved state cannot be read: {type(exc).__name__}: {exc}") from exc


def key_of(ticket: Mapping[str, JSON]) -> str:
    """The key in a ticket. Raises ResumeError for an invalid key: tickets come back in metadata, and users may change
    metadata."""
    if ticket.get("version") != VERSION:
        raise ResumeError(f"its ticket has version {ticket.get('version')!r}; this agentrl reads {VERSION}")
    try:
        return UUID(hex=ticket["key"]).hex
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ResumeError(f"its ticket names nothing: {ticket.get('key')!r:.80}") from None


_making = threading.Lock()


@cache
def _saved(folder: Path, dead_s: float) -> SavedEpisodes:
    """The SavedEpisodes of a folder. All event loops of this process share the object, because the process owns the
    files."""
    return SavedEpisodes(folder, shared=True, dead_s=dead_s)


@cache
def _saved_privately() -> SavedEpisodes:
    return SavedEpisodes(_private_folder())


@cache
def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="agentrl-parked-")  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _own_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(folder, f"parking.folder {name}")
    except OSError as exc:
        raise ConfigError(f"parking.folder {name}: {exc.strerror}; name a folder of your own") from exc
    return folder
