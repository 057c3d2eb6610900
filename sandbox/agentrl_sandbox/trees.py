"""Pack folders of the host as tar files, and unpack tar files. A tar file from a sandbox is not trusted."""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from agentrl.errors import ConfigError, SandboxError

OVERHEAD = 64 << 20
"""The most bytes of the headers of a tar file, in addition to the content."""
_MOST_ENTRIES = 50_000
_LONGEST_NAME = 4096
_DEEPEST = 256
_MOST_STEPS = 2_000_000
_BLOCK = 512
_LONGEST_CHAIN = 40
_PLAIN_TYPES = b"0125LK"  # files, hard links, links, folders; long names and long targets of links


def pack(source: Path, archive: IO[bytes]) -> None:
    """Write the content of a folder as a tar file. Raises ConfigError for a link that leads out, or a special file."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder, names, files in os.walk(source, onerror=_raise):
            names.sort()
            for name in sorted(names + files):
                path = Path(folder, name)
                _check_ours(path, source)
                tar.add(path, path.relative_to(source), recursive=False, filter=_nobodys)


def _raise(error: OSError) -> None:
    raise error


def _check_ours(path: Path, source: Path) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode) and not _stays_inside(path, source):
        raise ConfigError(f"{path} links to {os.readlink(path)!r}, outside of the upload; put the content there")
    if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(f"{path} is neither file, folder nor link; remove it before the upload")


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """A header without the owner, whom the sandbox does not know."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _stays_inside(link: Path, source: Path) -> bool:
    if os.path.isabs(os.readlink(link)):
        return False
    root, resolved = os.path.realpath(source), os.path.realpath(link)
    return resolved == root or resolved.startswith(f"{root}/")


def unpack(archive: IO[bytes], target: Path, max_bytes: int, name: str) -> None:
    """Unpack a sandbox's archive to `target`, completely or not at all. A single file becomes `target` itself.

    Raises SandboxError for entries other than plain files, folders and links to targets inside, and OSError with EFBIG
    for more than `max_bytes` bytes. `name` is the sandbox's name for the tree, used in messages.
    """
    _check_headers(archive, name)
    target = Path(os.path.abspath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".agentrl-download-", dir=target.parent))
    try:
        try:
            with tarfile.open(fileobj=archive, mode="r:") as tar:
                tree = _Tree(staging, target, max_bytes, name)
                for entry in tar:
                    tree.take(tar, entry)
        except tarfile.TarError as exc:
            raise SandboxError(f"the sandbox sent no readable archive of {name!r}: {exc}") from exc
        tree.finish()
        _move(staging, target, tree.single)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_headers(archive: IO[bytes], name: str) -> None:
    """Check each header before tarfile reads the archive: tarfile accepts headers of any length, and sparse files."""
    end = archive.seek(0, os.SEEK_END)
    position, entries = 0, 0
    while position + _BLOCK <= end:
        archive.seek(position)
        header = archive.read(_BLOCK)
        if not header.strip(b"\0"):
            break
        try:
            size = tarfile.nti(header[124:136])  # type: ignore[attr-defined]
        except tarfile.HeaderError as exc:
            raise SandboxError(f"the sandbox sent no readable archive of {name!r}: {exc}") from exc
        kind, entries = header[156], entries + 1
        if kind not in _PLAIN_TYPES:
            raise SandboxError(f"{name!r} holds a special file; only files, folders and links can be downloaded")
        if size < 0 or (kind in b"LK" and size > _LONGEST_NAME) or entries > 2 * _MOST_ENTRIES:
            raise SandboxError(f"{name!r} has a name that is too long, or more than {_MOST_ENTRIES} entries")
        position += _BLOCK + (0 if kind in b"125" else -(-size // _BLOCK) * _BLOCK)
    archive.seek(0)


class _Tree:
    """Unpacks a tree. Links are created last, so that no file is ever written through a link."""

    def __init__(self, staging: Path, target: Path, max_bytes: int, name: str) -> None:
        self._staging, self._target, self._name = staging, target, name
        self._room = max_bytes
        self._kinds: dict[str, str | None] = {"": None}
        """Path -> None for a folder, "" for a file, or the target of a link."""
        self._modes: dict[str, int] = {}
        self._steps = 0
        self.single = False

    def take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = self._path(entry)
        if entry.isdir():
            self._folder(path, entry.mode)
        elif path in self._kinds or len(self._kinds) > _MOST_ENTRIES:
            raise self._refused(entry.name, "is there twice, or is one of too many")
        elif entry.issym():
            self._folder(posixpath.dirname(path))
            self._kinds[path] = entry.linkname or "."
        elif entry.islnk():
            self._hard_link(path, entry)
        else:
            self._file(path, tar, entry)

    def finish(self) -> None:
        """Create the links, then set the modes of folders, as a folder may be read-only."""
        links = {path: link for path, link in self._kinds.items() if link}
        for path, link in links.items():
            if not self._inside(path):
                raise self._refused(path, f"links to {link!r}, outside of it")
        for path, link in links.items():
            os.symlink(link, self._staging / path)
        self.single = len(self._kinds) == 2 and "" not in self._modes and "" in self._kinds.values()
        for path in sorted(self._modes, reverse=True):
            os.chmod(self._staging / path, self._modes[path])

    def _path(self, entry: tarfile.TarInfo) -> str:
        name = entry.name.rstrip("/")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _DEEPEST:
            raise self._refused(entry.name, "would be written outside of it")
        return "/".join(parts)

    def _folder(self, path: str, mode: int | None = None) -> None:
        if self._kinds.get(path, path) is None:
            pass
        elif path in self._kinds or len(self._kinds) > _MOST_ENTRIES:
            raise self._refused(path, "is a folder and something else, or is one of too many")
        else:
            self._folder(posixpath.dirname(path))
            os.mkdir(self._staging / path, 0o700)
            self._kinds[path] = None
        if mode is not None:
            self._modes[path] = (mode & 0o755) | 0o700  # a folder closed to the owner could not be removed

    def _file(self, path: str, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        self._room -= entry.size
        if self._room < 0:
            raise OSError(errno.EFBIG, "longer than allowed; raise max_bytes", self._name)
        if (source := tar.extractfile(entry)) is None:
            raise self._refused(entry.name, "is not a plain file")
        self._folder(posixpath.dirname(path))
        with open(self._staging / path, "xb") as file:
            shutil.copyfileobj(source, file)
            if file.tell() != entry.size:
                raise self._refused(entry.name, "is shorter than its header")
            os.fchmod(file.fileno(), entry.mode & 0o755 | 0o600)
        self._kinds[path] = ""

    def _hard_link(self, path: str, entry: tarfile.TarInfo) -> None:
        source = "/".join(part for part in entry.linkname.split("/") if part not in ("", "."))
        if self._kinds.get(source) != "":
            raise self._refused(entry.name, f"is a second name of {entry.linkname!r}, which is not a file in it")
        self._folder(posixpath.dirname(path))
        os.link(self._staging / source, self._staging / path)
        self._kinds[path] = ""

    def _inside(self, path: str) -> bool:
        """Follow a link as the kernel would, but only in `_kinds`."""
        done: list[str] = []
        to_do, links = path.split("/")[::-1], 0
        while to_do:
            self._steps += 1
            part = to_do.pop()
            if part == ".." and done:
                done.pop()
            elif part == ".." or len(done) > _DEEPEST or self._steps > _MOST_STEPS:
                return False
            elif part not in ("", "."):
                done.append(part)
                if (link := self._link("/".join(done))) is not None:
                    links += 1
                    if link.startswith("/") or links > _LONGEST_CHAIN:
                        return False
                    done.pop()
                    to_do += link.split("/")[::-1]
        return True

    def _link(self, path: str) -> str | None:
        """The target of a link; `/` for a link that the target folder had before."""
        if path in self._kinds:
            return self._kinds[path] or None
        return "/" if (self._target / path).is_symlink() else None

    def _refused(self, path: str, why: str) -> SandboxError:
        return SandboxError(f"{self._name!r} is not downloaded: {path!r} {why}")


def _move(staging: Path, target: Path, single: bool) -> None:
    """Move the unpacked tree into place: first check whether the whole tree fits, then move."""
    if single:
        (file,) = (path for path in staging.rglob("*") if not path.is_dir())
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a file cannot replace a folder", str(target))
        os.replace(file, target)
    elif not os.path.lexists(target):
        os.rename(staging, target)
    elif not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a folder cannot replace a file", str(target))
    else:
        _check_room_for(staging, target)
        _merge(staging, target)


def _check_room_for(staging: Path, target: Path) -> None:
    for entry in _entries(staging):
        existing, is_folder = target / entry.name, entry.is_dir(follow_symlinks=False)
        if not os.path.lexists(existing):
            continue
        if is_folder != stat.S_ISDIR(existing.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "a folder cannot replace a file, nor a file a folder", str(existing))
        if is_folder:
            _check_room_for(Path(entry.path), existing)


def _merge(staging: Path, target: Path) -> None:
    for entry in _entries(staging):
        existing = target / entry.name
        if entry.is_dir(follow_symlinks=False) and os.path.lexists(existing):
            _merge(Path(entry.path), existing)
        else:
            os.replace(entry.path, existing)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)
