"""Shell scripts that copy files into and out of a sandbox, and the meaning of the scripts' errors.

The scripts run in `sh` inside the sandbox, as the requested user. File names are arguments, never text of a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from typing import IO

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Process, SandboxKilledError
from agentrl_sandbox.output import Output, Stream

_REGULAR = 'if [ -e "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then echo "$1: Invalid argument" >&2; exit 1; fi; '
_FOLDER_OF = 'case "$1" in */*) d=${1%/*};; *) d=.;; esac; [ -n "$d" ] || d=/; '

READ = _REGULAR + 'exec head -c "$2" -- "$1"'
"""Prints a file. Arguments: the file, and the most bytes to print."""
WRITE = (
    _REGULAR
    + _FOLDER_OF
    + '[ ! -d "$1" ] || { echo "$1: Is a directory" >&2; exit 1; }; '
    + 'mkdir -p -- "$d" && cat > "$1" && n=$(wc -c < "$1") && [ "$n" -eq "$2" ]'
)
"""Writes stdin to a file. Arguments: the file, and the number of bytes, so that a lost connection does not look like
the end of the file."""
CHMOD = 'exec chmod "$2" -- "$1"'
UNPACK = 'mkdir -p -- "$1" && exec tar -x -p -o -f - -C "$1"'
PACK = (
    _REGULAR
    + _FOLDER_OF
    + '[ -e "$1" ] || exec ls -d -- "$1"; '  # missing or unreachable; the error of ls names the reason
    + 'if [ -d "$1" ]; then exec tar -c -f - -C "$1" .; fi; '
    + 'exec tar -c -h -f - -C "$d" -- "./${1##*/}"'
)
_GNU_TAR = 'tar --version 2>/dev/null | grep -q GNU || { echo "it needs GNU tar" >&2; exit 127; }; '
SAVE = _GNU_TAR + 'tar -c -z -f - --format=posix --one-file-system -- "$@"; s=$?; [ $s -ne 1 ] || s=0; exit $s'
"""Prints a tar file of folders. Arguments: the folders, relative to the root folder, in which the script runs. The
format stores fractions of seconds. tar exits with 1 if a file changed while it was read, which is no error here."""
RESTORE = (
    _GNU_TAR
    + 'for d; do chmod u+rwx -- "$d" 2>/dev/null; '
    + 'find "$d" -xdev -mindepth 1 -type d ! -perm -700 -exec chmod u+rwx -- {} ";" ; '
    + 'find "$d" -xdev -mindepth 1 -delete || exit 2; done; '
    + "exec tar -x -z -p -P --skip-old-files --delay-directory-restore -f -"
)
"""Replaces the content of folders by the tar file on stdin. Arguments: as of SAVE. The first `find` opens each folder
to the owner before entering. tar then finds only the folders themselves, and skips the folders, because they may belong
to a different user.
"""

_KNOWN = {
    os.strerror(number): number
    for number in (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EROFS, errno.ENOSPC),
        *(errno.EFBIG, errno.EDQUOT, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EIO, errno.EEXIST),
    )
}
_TOO_LARGE = (128 + 25, "File size limit exceeded")  # exit code of a program ended by SIGXFSZ
_NOT_FOUND = 127
_KILLED = 128 + 9
NO_PROCESS = ("Cannot fork", "fork: Resource temporarily unavailable", "fork: retry")
"""Messages of shells that cannot start a process."""


class Catch:
    """Receives a script's output. At most `limit` bytes of stdout are written to a file."""

    def __init__(self, target: IO[bytes], limit: int) -> None:
        self.output = Output(16 << 10)
        self._target = target
        self._room = limit
        self._too_long = asyncio.Event()

    def add(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self.output.add(stream, data)
        elif len(data) <= self._room:
            self._target.write(data)
            self._room -= len(data)
        else:
            self._room = 0
            self._too_long.set()

    @contextlib.asynccontextmanager
    async def killing(self, process: Process) -> AsyncIterator[None]:
        """Within `with`, kill the script when its output is too long."""

        async def watch() -> None:
            await self._too_long.wait()
            await process.kill()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def check(self, result: ExecResult, name: str | None, sandbox_id: str) -> None:
        """Raise the error of a failed script: OSError if the error concerns the one file `name`."""
        if self._too_long.is_set():
            raise OSError(errno.EFBIG, "longer than allowed; raise max_bytes or disk_mb", name)
        if result.exit_code == 0:
            return
        stderr = " ".join(result.stderr[-400:].split())
        subject = f"sandbox {sandbox_id}: the transfer of {name!r}" if name else f"sandbox {sandbox_id}: a snapshot"
        if result.timed_out:
            raise SandboxError(f"{subject} took too long")
        if result.exit_code == _KILLED:
            raise SandboxKilledError(f"{subject} was killed, most likely for memory; raise memory_mb")
        if any(text in stderr for text in NO_PROCESS):
            raise SandboxKilledError(
                f"{subject}: there is no room for another process; the sandbox's own fill it (pids)"
            )
        if result.exit_code == _NOT_FOUND:
            raise SandboxError(f"{subject} needs a program that its image lacks: {stderr}")
        if name is None or (number := _meaning(result)) is None:
            raise SandboxError(f"{subject} failed: {stderr or f'exit code {result.exit_code}'}")
        kind = PermissionError if number == errno.EROFS else OSError  # OSError picks the right subclass itself
        raise kind(number, os.strerror(number), name)


def _meaning(result: ExecResult) -> int | None:
    """The errno that belongs to the error text at the end of a program's message."""
    if result.exit_code == _TOO_LARGE[0] or _TOO_LARGE[1] in result.stderr:
        return errno.EFBIG
    for line in result.stderr.splitlines():
        for text, number in _KNOWN.items():
            if line.endswith(text):
                return errno.ENOTDIR if number == errno.EEXIST else number  # mkdir's error for a file in the way
    return None
