"""Scripts inside a container: a wrapper around a command, and a killer of a command.

An engine does not stop a command when the connection closes, and reports the command's end only once all pipes are
closed. Background processes may hold the pipes open. So a command runs under a small shell script. The script's first
output is a mark with the script's process id. A last mark ends both streams once the command has ended. Between script
and command runs docker-init as a subreaper: processes without a session or a parent become children of docker-init. So
all processes of a command descend from the script as long as the command runs.

A kill runs a second command, to walk the tree from the script's process id. The killer uses only the shell's builtins,
as there may be no room for another process. Before the kill, processes are stopped until no new processes appear: a
stopped process cannot start children.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from agentrl_sandbox.process_tree import ADD_DESCENDANTS, KILL_CHILDREN_FIRST, LIST_PROCESSES

INIT = "/sbin/docker-init"
"""The path at which the engine puts docker-init, which is also the container's first process."""
NO_FOLDER = "cwd"
"""The text of the first mark if the start folder is missing."""
BEGUN = re.compile(r"p(\d+)m(\d+)")
"""Matches the first mark if the command begins: the process id, and how many processes of the container the kernel has
killed for memory.
"""
NO_MEMORY = "m"
"""A letter after the exit code in the last mark. The letter means that the kernel has killed further processes
for memory."""

KILLED = "killed"
"""The text that the command of `killer` prints at its end."""

_RUN = r"""
token=$1
cd -- "$2" 2>/dev/null || { printf '%scwd;' "$token"; exit 0; }
unset OLDPWD
shift 2
[ "$1" != bash ] || command -v bash >/dev/null || { shift; set -- sh "$@"; }
count() {
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ ! -r "$file" ] || while read -r key value; do [ "$key" != oom_kill ] || kills=$value; done < "$file"
  done
}
kills=0
count
before=$kills
set -- /bin/sh -c 'printf "%s%s;" "$0" "$1"; shift; exec "$@"' "$token" "p$$m$before" "$@"
[ ! -x INIT ] || set -- INIT -s -- "$@"
"$@"
code=$?
[ "$code" != 137 ] || { count; [ "$kills" = "$before" ] || code=${code}m; }
printf '%s%s;' "$token" "$code"
printf '%s%s;' "$token" "$code" >&2
""".replace("INIT", INIT)

_KILL = (
    r"""
exec 2>/dev/null
root=$1 before= round=0
while [ "$round" -lt 100 ]; do
  round=$((round + 1))
"""
    + LIST_PROCESSES
    + r"""
  tree=" $root "
"""
    + ADD_DESCENDANTS
    + r"""
  # A command that ended, or killed its watcher: what it started descends from others now.
  [ -n "$before" ] || [ "$tree" != " $root " ] || exit 1
  if [ "$tree" = "$before" ]; then
"""
    + KILL_CHILDREN_FIRST
    + r"""
    echo KILLED
    exit 0
  fi
  before=$tree
  kill -STOP $tree
done
""".replace("KILLED", KILLED)
)

_LONGEST_MARK = 64


def wrapped(argv: Sequence[str], token: str, cwd: str) -> list[str]:
    """The command for the engine: the wrapper script with the command `argv`."""
    return ["/bin/sh", "-c", _RUN, "sh", token, cwd, *argv]


def killer(pid: int) -> list[str]:
    """A command that kills a process with all its descendants, and prints KILLED at its end."""
    return ["/bin/sh", "-c", _KILL, "sh", str(pid)]


def new_token() -> str:
    """A random token: no command can learn the mark of a different command in time to fake an end. A command
    may fake its own end.
    """
    return f"\x1e{secrets.token_hex(12)}:"


class Marks:
    """Removes the marks from one stream. Data after the last expected mark is dropped, as the command did not write
    such data.
    """

    def __init__(self, token: str, expected: int) -> None:
        self._mark = re.compile(re.escape(token.encode()) + rb"(\w{1,20});")
        self._token = token.encode()
        self._expected = expected
        self._rest = b""
        self.reports: list[str] = []

    @property
    def complete(self) -> bool:
        return len(self.reports) == self._expected

    def feed(self, data: bytes) -> bytes:
        """Data of the stream without marks. The beginning of a possible mark is stored until the mark is complete."""
        data, self._rest = self._rest + data, b""
        parts = []
        while not self.complete:
            match = self._mark.search(data)
            if match is None:
                length = self._held(data)
                self._rest = data[len(data) - length :]
                parts.append(data[: len(data) - length])
                break
            parts.append(data[: match.start()])
            self.reports.append(match[1].decode())
            data = data[match.end() :]
        return b"".join(parts)

    def rest(self) -> bytes:
        """The stored data that turned out to be no mark, after the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest

    def _held(self, data: bytes) -> int:
        """The length of the last part of `data` that may be the beginning of a mark."""
        start = data.rfind(self._token[:1], max(0, len(data) - _LONGEST_MARK))
        while start >= 0:
            tail = data[start:]
            if self._token.startswith(tail) or (tail.startswith(self._token) and tail[len(self._token) :].isalnum()):
                return len(tail)
            start = data.rfind(self._token[:1], max(0, len(data) - _LONGEST_MARK), start)
        return 0
