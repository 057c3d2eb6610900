"""The agent's work in a sandbox: write the initial files, apply a solution, and copy changes to a clean sandbox."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl import ConfigError
from agentrl.sandbox import ExecResult, Sandbox
from agentrl_envs.coding.problem import Files, Solution, Step

_LARGEST_WORK = 64 << 20
"""The most bytes of changed files that are copied to a clean sandbox."""

_READING_S = 60.0
_NO_SUCH_COMMAND = 127
_NEEDED = "command -v find sha256sum tar xargs >/dev/null || exit 127; "

# Hashes, because an agent can set any time of change. `.git` could hold hooks, and `__pycache__` code that Python runs
# in place of a test's source.
_LIST = _NEEDED + (
    r"find . \( -name .git -o -name __pycache__ \) -prune -o -type f -exec sha256sum -z -- {} + "
    r"-o -type l -printf '->%l  %p\0' 2>/dev/null; true"
)
_PACK = _NEEDED + "tar -cf - --exclude=__pycache__ {} --null -T - 2>/dev/null; true"


class WorkError(Exception):
    """The agent's work cannot be graded. The agent is to blame, so the score is 0."""


async def place(box: Sandbox, files: Files, *, user: str | None = None) -> None:
    """Write files, and the content of folders, into a sandbox."""
    for path, content in files.items():
        if isinstance(content, Path) and content.is_dir():
            await box.upload(content, path, user=user)
        else:
            await box.write_file(path, content, user=user)


async def prepare(box: Sandbox, step: Step) -> None:
    """Prepare the beginning of a step. Raises CommandError if the setup fails."""
    await place(box, step.files)
    if step.setup:
        await box.exec(step.setup, timeout=step.grade_s, check=True)


async def solve(box: Sandbox, gold: Solution, *, timeout: float) -> ExecResult:
    """Apply a task's solution, as the task's oracle does."""
    await place(box, gold.files, user=gold.user)
    if not gold.command:
        return ExecResult(0)
    return await box.exec(gold.command, user=gold.user, env=gold.env, timeout=timeout)


async def carry(
    source: Sandbox, target: Sandbox, only: Sequence[str] | None = None, without: Callable[[str], bool] | None = None
) -> None:
    """Copy the work folder of `source` to `target`: the whole folder, or only the files and folders `only`.

    Both folders began with the same content. `.git`, `__pycache__` and the paths `without` are left as they are in
    `target`. Raises WorkError if the work cannot be carried, ConfigError if a path leads out of the work folder or if
    the image lacks find, sha256sum, tar or xargs.
    """
    if only is None:
        theirs, ours = await _listing(source), await _listing(target)
        untouched = {path for path in {*theirs, *ours} if without is not None and without(os.fsdecode(path)[2:])}
        changed = [path for path, digest in theirs.items() if ours.get(path) != digest and path not in untouched]
        replaced = [path for path in ours if theirs.get(path) != ours[path] and path not in untouched]
    else:
        changed = replaced = [_inside(path).encode() for path in only]
    await _replace(source, target, changed, replaced)


async def carry_paths(source: Sandbox, target: Sandbox, paths: Sequence[str]) -> None:
    """Copy files and folders by their absolute paths, as root, with `.git` folders.

    Raises WorkError and ConfigError as `carry` does.
    """
    names = [f".{posixpath.normpath(path)}".encode() for path in paths]
    await _replace(source, target, names, names, cwd="/", user="root")


async def _replace(
    source: Sandbox,
    target: Sandbox,
    changed: Sequence[bytes],
    replaced: Sequence[bytes],
    *,
    cwd: str | None = None,
    user: str | None = None,
) -> None:
    if replaced:
        await target.exec("xargs -0 rm -rf --", stdin=b"\0".join(replaced), check=True, cwd=cwd, user=user)
    if changed and (archive := await _archive(source, changed, cwd, user)):
        unpacked = await target.exec("tar -xf - --no-same-owner", stdin=archive, timeout=_READING_S, cwd=cwd, user=user)
        if unpacked.exit_code:
            raise WorkError(f"the agent's files cannot be unpacked in a clean sandbox: {unpacked.stderr[-400:]}")


async def _listing(box: Sandbox) -> Mapping[bytes, bytes]:
    """Path of every file in the work folder -> hash of its content, or target of the link."""
    pairs = (entry.partition(b"  ") for entry in (await _output(box, _LIST)).split(b"\0"))
    return {path: digest for digest, _, path in pairs if path}


async def _archive(box: Sandbox, paths: Sequence[bytes], cwd: str | None, user: str | None) -> bytes:
    """Files as a tar archive, rebuilt on this machine, because data from the sandbox cannot be trusted."""
    pack = _PACK.format("--exclude=.git" if cwd is None else "")
    sent = await _output(box, pack, b"\0".join(paths), cwd, user)
    rebuilt, names = io.BytesIO(), [path.decode(errors="surrogateescape") for path in paths]
    try:
        with tarfile.open(fileobj=io.BytesIO(sent)) as archive, tarfile.open(fileobj=rebuilt, mode="w") as target:
            for member in archive:
                name = f"./{posixpath.normpath(member.name)}"
                if (member.isreg() or member.issym()) and any(f"{name}/".startswith(f"{path}/") for path in names):
                    target.addfile(member, archive.extractfile(member) if member.isreg() else None)
    except (tarfile.TarError, ValueError) as exc:
        raise WorkError(f"sandbox {box.sandbox_id} sent no archive of the agent's work: {exc}") from exc
    return rebuilt.getvalue()


async def _output(
    box: Sandbox, command: str, stdin: bytes = b"", cwd: str | None = None, user: str | None = None
) -> bytes:
    """The output of a command, as bytes."""
    pieces: list[bytes] = []
    size = 0

    def take(stream: str, data: bytes) -> None:
        nonlocal size
        if stream == "stdout" and (size := size + len(data)) <= _LARGEST_WORK:
            pieces.append(data)

    result = await box.exec(
        command, stdin=stdin, timeout=_READING_S, max_output=4096, on_output=take, cwd=cwd, user=user
    )
    if result.exit_code == _NO_SUCH_COMMAND:
        raise ConfigError(f"sandbox {box.sandbox_id} lacks find, sha256sum, tar or xargs; use an image that has them")
    if size > _LARGEST_WORK or result.timed_out:
        raise WorkError(
            f"the agent's work is larger than {_LARGEST_WORK >> 20} MiB, or takes over {_READING_S:g} s to read"
        )
    return b"".join(pieces)


def _inside(path: str) -> str:
    normal = posixpath.normpath(path)
    if posixpath.isabs(normal) or normal.startswith(".."):
        raise ConfigError(f"{path!r} cannot be carried over; name a path relative to the work folder and within it")
    return f"./{normal}"
