"""Starts the processes of a rehearsal and ends all of them, also when the command was killed.

The guard is a separate process, and imports only the standard library. The guard adopts orphans of its children
(Linux: PR_SET_CHILD_SUBREAPER), so no process escapes by a new session or a changed title. Requests and reports are
lines of JSON on stdin and stdout. The guard ends all processes when stdin closes. A killed command closes stdin, too.

A second process, the guard's parent, does nothing but wait. If the guard is killed, the second process adopts all
processes and ends them. Neither process is named python: `pkill -9 python`, with which slime's scripts begin, ends
neither.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_NAME, _SUBREAPER = 15, 36  # PR_SET_NAME, PR_SET_CHILD_SUBREAPER
_TICK_S = 0.2
_MEASURE_S = 5.0
_GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_SHARED = Path("/dev/shm")
_MOST_LOG = 20_000_000
_MOST_PIPE = 1 << 16
"""Bytes that a pipe holds."""


class ProcessGuard:
    def __init__(self) -> None:
        self._second: int | None = None
        """The pipe to the second process, which gets each request `clean` too."""
        self._processes: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._remove: list[str] = []
        self._remove_if_empty: list[str] = []
        self._keep: list[tuple[str, str]] = []
        self._shared: set[str] = set()
        self._present = _shared_files()
        self._peak = 0
        self._measured = 0.0
        self._buffer = b""

    def run(self) -> None:
        """Serve requests, in a child process, until stdin closes; then end all processes and remove their files."""
        reading, writing = os.pipe()
        if guard := os.fork():
            os.close(writing)
            os.waitpid(guard, 0)
            for line in os.read(reading, _MOST_PIPE).splitlines():
                self._clean(json.loads(line))
            self._end()
            return
        os.close(reading)
        self._second = writing
        _adopt_orphans()
        self._serve()

    def _serve(self) -> None:
        requests: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "kill": self._kill,
            "sweep": self._sweep,
            "clean": self._clean,
        }
        try:
            while (lines := self._read()) is not None:
                for line in lines:
                    request = json.loads(line)
                    requests[request.pop("request")](request)
                self._reap()
                self._measure()
        finally:
            self._end()

    def _read(self) -> list[bytes] | None:
        """The requests that have arrived within a tick. None at the end."""
        if not select.select([0], [], [], _TICK_S)[0]:
            return []
        data = os.read(0, 1 << 16)
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return lines

    def _start(self, request: dict[str, Any]) -> None:
        with open(request["log"], "ab") as log:
            try:
                process = subprocess.Popen(
                    request["words"],
                    env=request["variables"],
                    cwd=request["folder"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as exc:
                log.write(f"{exc}\n".encode())
                _report(report="ended", name=request["name"], status=127)
                return
        self._processes[process.pid] = (request["name"], process)
        _report(report="started", name=request["name"], pid=process.pid)

    def _kill(self, request: dict[str, Any]) -> None:
        """Kill a started process and its descendants."""
        parents = _parents()
        for pid, (name, _) in self._processes.items():
            if name == request["name"]:
                for descendant in [pid, *_descendants(pid, parents)]:
                    _signal(descendant, signal.SIGKILL)

    def _sweep(self, request: dict[str, Any]) -> None:
        """Kill the processes whose starter has ended. Processes of Ray live below Ray's own."""
        parents = _parents()
        for pid in [
            child for child, parent in parents.items() if parent == os.getpid() and child not in self._processes
        ]:
            for descendant in [pid, *_descendants(pid, parents)]:
                _signal(descendant, signal.SIGKILL)
        _report(report="swept")

    def _clean(self, request: dict[str, Any]) -> None:
        """Remember files for the end: to remove, to remove if empty, to copy first."""
        self._remove += request.get("remove", [])
        self._remove_if_empty += request.get("remove_if_empty", [])
        self._keep += [(source, copy) for source, copy in request.get("keep", [])]
        if self._second is not None:
            with suppress(OSError):  # the second process is gone
                os.write(self._second, json.dumps(request).encode() + b"\n")

    def _reap(self) -> None:
        """Report ended processes, and collect ended orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (entry := self._processes.pop(pid, None)) is not None:
                entry[1].returncode = os.waitstatus_to_exitcode(status)
                _report(report="ended", name=entry[0], status=entry[1].returncode)

    def _measure(self, *, now: bool = False) -> None:
        """Note the memory of all processes, and their files in /dev/shm."""
        if not now and time.monotonic() - self._measured < _MEASURE_S:
            return
        self._measured, total = time.monotonic(), 0
        for pid in _descendants(os.getpid(), _parents()):
            total += _memory(pid)
            self._shared |= _held(pid)
        if total > self._peak:
            self._peak = total
            _report(report="memory", bytes=total)

    def _end(self) -> None:
        self._measure(now=True)
        for pid in _descendants(os.getpid(), _parents()):
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while _descendants(os.getpid(), _parents()):
            if time.monotonic() > deadline:
                for pid in _descendants(os.getpid(), _parents()):
                    _signal(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.05)
        for source, copy in self._keep:
            _copy_logs(Path(source), Path(copy))
        for path in self._remove:
            shutil.rmtree(path, ignore_errors=True)
        for path in self._remove_if_empty:
            with suppress(OSError):
                os.rmdir(path)
        for path in self._shared - self._present:
            with suppress(OSError):
                os.unlink(path)
        _report(report="all ended", peak=self._peak)


def _report(**report: Any) -> None:
    with suppress(OSError):  # the command is gone
        os.write(1, json.dumps(report).encode() + b"\n")


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _parents() -> dict[int, int]:
    """The parent of each process. Ended processes that wait to be collected are left out."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError, ValueError):
                fields = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry)] = int(fields[1])
    return parents


def _descendants(pid: int, parents: Mapping[int, int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    below, waiting = [], [pid]
    while waiting:
        inner = children.get(waiting.pop(), [])
        below += inner
        waiting += inner
    return below


def _memory(pid: int) -> int:
    """Bytes of a process. A page that n processes share counts as 1/n."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def _held(pid: int) -> set[str]:
    """The files in /dev/shm that a process has mapped."""
    with suppress(OSError):
        lines = Path("/proc", str(pid), "maps").read_text(errors="replace").splitlines()
        return {
            line[line.index(f"{_SHARED}/") :] for line in lines if f"{_SHARED}/" in line and "(deleted)" not in line
        }
    return set()


def _shared_files() -> set[str]:
    with suppress(OSError):
        return {str(file) for file in _SHARED.iterdir()}
    return set()


def _copy_logs(source: Path, copy: Path) -> None:
    with suppress(OSError):
        copy.mkdir(parents=True, exist_ok=True)
        for file in source.glob("*"):
            if file.suffix in (".out", ".err", ".log") and 0 < file.stat().st_size < _MOST_LOG:
                shutil.copy(file, copy)


def _adopt_orphans() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_NAME, b"rehearsal-guard", 0, 0, 0)
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    ProcessGuard().run()


if __name__ == "__main__":
    main()
    sys.exit(0)
