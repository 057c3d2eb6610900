"""Find out whether an Env blocks the event loop: a thread inspects the loop's thread whenever the loop is late.

A busy machine makes every loop late. So a line counts only if the thread sees the line several times while the loop is
held up, if the loop's thread then slept or used the processor, and if the same happens in more than one episode. Time
that the thread waited for a processor does not count, and neither does the delay of the watching thread. A line is an
error only if it blocks again in a replay of the episode, and if the time is not spent inside a library: an awaited
request computes there, too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from agentrl._util.findings import Place, Report
from agentrl.check.places import AuthorCode, library_of

_BEAT_S, _LOOK_S, _LATE_S = 0.003, 0.004, 0.010
_SLEPT_S, _WORKED_S = 0.03, 0.1
"""Seconds for which an Env may sleep, and for which it may compute, on the event loop without a break."""
_SAMPLES = 3
_PLAYERS = ("agentrl/engine/scripted.py", "agentrl/check/playing.py")
_RENDERING = "/agentrl/render/"
_CHECK = "blocking"
_REMEDY = "await it, write the hook as a plain `def`, or use `await self.call(function)`"


class _Clock(NamedTuple):
    """Times of a thread in seconds: wall time, time on a processor, and time spent waiting for a processor."""

    wall: float
    worked: float
    waited: float


class _Line(NamedTuple):
    """A line of the Env's code, and the library that the line is calling, if any."""

    place: Place
    package: str | None


@dataclass(slots=True)
class _Stall:
    """A period in which the event loop was held up."""

    beat: float
    first: _Clock
    last: _Clock
    late: float = 0.0
    """Seconds by which the watching thread woke up late in the period: so long the whole machine was busy."""
    lines: Counter[_Line] = field(default_factory=Counter)

    def blocked(self) -> tuple[_Line, str] | None:
        """The line that blocked the loop, and whether it slept or computed. None if no line blocked."""
        if self.lines.total() < _SAMPLES:
            return None
        worked, waited = self.last.worked - self.first.worked, self.last.waited - self.first.waited
        slept = self.last.wall - self.first.wall - worked - max(waited, self.late)
        line, seen = self.lines.most_common(1)[0]
        if slept >= _SLEPT_S and seen >= _SAMPLES:
            return line, f"sleeps or waits for {1000 * slept:.0f} ms"
        if worked >= _WORKED_S:
            return line, f"computes for {1000 * worked:.0f} ms"
        return None


class Watchdog:
    """Watches the running event loop, within `with`. `report` adds the findings."""

    def __init__(self, author: AuthorCode, episode: Callable[[], int]) -> None:
        self._author, self._loop, self._episode = author, asyncio.get_running_loop(), episode
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._beat = time.monotonic()
        self._stall: _Stall | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="agentrl-check", daemon=True)
        self._blocked: dict[_Line, dict[int, str]] = defaultdict(dict)
        """Line -> number of the episode -> how the line blocked."""

    def __enter__(self) -> Watchdog:
        self._strike()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._timer.cancel()
        self._thread.join()

    def suspects(self) -> bool:
        """Whether a line blocked in several episodes."""
        return any(len(episodes) > 1 for episodes in self._blocked.values())

    def report(self, report: Report, replayed: int) -> None:
        """Add the findings. Episodes numbered above `replayed` are replays, played to confirm findings."""
        for line, episodes in sorted(self._blocked.items(), key=lambda item: item[0].place):
            if len(episodes) < 2:
                continue
            how = next(iter(episodes.values()))
            within = f", inside {line.package}," if line.package else ""
            message = (
                f"this line {how}{within} on the event loop, where every other episode waits for it "
                f"(seen in {len(episodes)} episodes)"
            )
            if line.package is None and max(episodes) > replayed:
                report.error(_CHECK, line.place, message, _REMEDY)
            elif line.package is None:
                message += "; it did not block when it was played again"
                report.warn(_CHECK, line.place, message, f"unless a busy machine explains it, {_REMEDY}")
            else:
                report.warn(_CHECK, line.place, message, f"unless this is an awaited call of {line.package}, {_REMEDY}")

    def _strike(self) -> None:
        self._beat = time.monotonic()
        self._timer = self._loop.call_later(_BEAT_S, self._strike)

    def _watch(self) -> None:
        asleep = time.monotonic()
        while not self._over.wait(_LOOK_S):
            beat, now = self._beat, time.monotonic()
            if self._stall is not None:
                self._stall.late += max(0.0, now - asleep - _LOOK_S)
                if self._stall.beat != beat:
                    self._end(self._stall)
            if now - beat >= _LATE_S:
                self._look(beat)
            asleep = time.monotonic()
        if self._stall is not None:
            self._end(self._stall)

    def _look(self, beat: float) -> None:
        line = self._line(sys._current_frames().get(self._ident))
        if line is None:
            return
        clock = self._clock()
        if self._stall is None:
            self._stall = _Stall(beat, clock, clock)
        self._stall.last = clock
        self._stall.lines[line] += 1

    def _end(self, stall: _Stall) -> None:
        self._stall = None
        if (blocked := stall.blocked()) is not None:
            line, how = blocked
            self._blocked[line].setdefault(self._episode(), how)

    def _line(self, frame: FrameType | None) -> _Line | None:
        """The Env's line that runs. None while the player's code runs in the model's place: the player may be slow.

        Also None while a process starts: asyncio itself waits on the loop until the child runs, which takes long on a
        busy machine. Also None while agentrl renders and tokenises for the Env, for example for a simulated user.
        """
        if _renders(self._author, frame):
            return None
        outer = frame
        while outer is not None:
            if outer.f_code.co_filename.endswith(_PLAYERS) and outer.f_code.co_name != "play":
                return None
            if outer.f_code.co_name == "_execute_child":  # of subprocess.Popen
                return None
            outer = outer.f_back
        place = self._author.of_frame(frame)
        return _Line(place, library_of(self._author, frame)) if place is not None else None

    def _clock(self) -> _Clock:
        worked = waited = 0.0
        with suppress(OSError, ValueError):  # only Linux reports how long a thread has waited for a processor
            ran, queued, _ = Path(f"/proc/self/task/{self._native}/schedstat").read_text().split()
            worked, waited = int(ran) / 1e9, int(queued) / 1e9
        return _Clock(time.monotonic(), worked, waited)


def _renders(author: AuthorCode, frame: FrameType | None) -> bool:
    """Whether agentrl's renderer runs, and has not called the author's code."""
    while frame is not None and not author.has(frame.f_code.co_filename):
        if _RENDERING in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def sleeping_calls(author: AuthorCode, report: Report) -> None:
    """Report calls that always block, in `async def` methods that perhaps no play has reached."""
    import ast

    from agentrl.check.places import dotted

    for file, function in author.functions():
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in _own_nodes(function):
            if isinstance(node, ast.Call) and (name := dotted(node.func)) in _BLOCKING:
                report.warn(
                    _CHECK,
                    Place(file, node.lineno),
                    f"{name} blocks the event loop in `async def {function.name}`",
                    _BLOCKING[name],
                )


def _own_nodes(function: object) -> list[object]:
    """The nodes that a function executes, without nested functions."""
    import ast

    nodes, waiting = [], list(getattr(function, "body", ()))
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return nodes


_ASYNC_HTTP = "use an asynchronous client, or `await self.call(function)`"
_BLOCKING = {
    "time.sleep": "write `await asyncio.sleep(seconds)`",
    "subprocess.run": "use asyncio.create_subprocess_exec, or `await self.call(function)`",
    "subprocess.check_output": "use asyncio.create_subprocess_exec, or `await self.call(function)`",
    "subprocess.check_call": "use asyncio.create_subprocess_exec, or `await self.call(function)`",
    "os.system": "use asyncio.create_subprocess_shell, or `await self.call(function)`",
    "urllib.request.urlopen": _ASYNC_HTTP,
    "requests.get": _ASYNC_HTTP,
    "requests.post": _ASYNC_HTTP,
    "requests.request": _ASYNC_HTTP,
    "httpx.get": _ASYNC_HTTP,
    "httpx.post": _ASYNC_HTTP,
}
