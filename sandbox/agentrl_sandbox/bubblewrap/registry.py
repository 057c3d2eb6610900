"""The list of boxes on this machine. Each box has a small file in a folder of the user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from agentrl_sandbox import owners
from agentrl_sandbox.backend import FoundSandbox
from agentrl_sandbox.bubblewrap import cgroups


@dataclass(frozen=True, slots=True)
class RegisteredBox:
    """A running box, with the data that another process needs to end the box."""

    sandbox_id: str
    image: str
    owner: str
    run: str
    deadline: float
    pid: int
    """The box's first process. The end of the first process ends the whole box."""
    start: str
    """The start time of this process, as a process id may be reused."""
    cgroups: tuple[str, ...]

    def found(self) -> FoundSandbox:
        gone = not self.runs or owners.is_gone(self.owner, self.deadline)
        return FoundSandbox(self.sandbox_id, self.image, self.owner, self.run, self.deadline, gone)

    @property
    def runs(self) -> bool:
        return bool(self.start) and start_of(self.pid) == self.start


def folder() -> Path:
    """The folder of the files. A reboot clears the folder, and ends the boxes too."""
    base = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR")
    return Path(base, "agentrl") if base else Path(tempfile.gettempdir(), f"agentrl-{os.geteuid()}")


def write(entry: RegisteredBox) -> None:
    home = folder()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.geteuid():
        raise PermissionError(f"{home} belongs to another user; set XDG_RUNTIME_DIR")
    draft = home / f".{entry.sandbox_id}"
    draft.write_text(json.dumps(asdict(entry)))
    draft.rename(home / f"{entry.sandbox_id}.json")


def entries() -> list[RegisteredBox]:
    """All running boxes, and ended boxes whose owner has ended and left a file and cgroups behind."""
    boxes = []
    for file in sorted(folder().glob("bubblewrap-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            entry = RegisteredBox(**json.loads(file.read_text()))
            if entry.runs or owners.is_gone(entry.owner, entry.deadline):  # else the owner is about to remove the box
                boxes.append(entry)
    return boxes


def end(entry: RegisteredBox) -> None:
    """Kill a box with all its processes, and remove its file."""
    if entry.runs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(entry.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while entry.runs and time.monotonic() < deadline:
        time.sleep(0.002)
    cgroups.remove(tuple(map(Path, entry.cgroups)))
    (folder() / f"{entry.sandbox_id}.json").unlink(missing_ok=True)


def start_of(pid: int) -> str:
    """The start time of a process as text, in clock ticks since the boot. Empty for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
