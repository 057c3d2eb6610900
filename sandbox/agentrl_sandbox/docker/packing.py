"""Files and folders of this machine as tar files for an engine to unpack in a container."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError

_LARGEST = 256 << 20
"""Bytes of one archive. An archive is held in memory during the transfer."""


def packed_files(files: Mapping[str, str]) -> bytes:
    """The files (path in the container -> file here), as root's. Raises ConfigError for unreadable files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for inside, here in files.items():
            _add(archive, Path(here), inside.lstrip("/"))
    return packed.getvalue()


def packed_folder(folder: str) -> bytes:
    """The content of a folder, as root's: files, folders, and links as links. Raises ConfigError as `packed_files`
    does.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_symlink() or path.is_file() or path.is_dir():
                _add(archive, path, str(path.relative_to(folder)))
    return packed.getvalue()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    try:
        entry = archive.gettarinfo(path, name)
        if entry.islnk():  # a second name of a file already in the archive
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        if archive.offset + entry.size > _LARGEST:
            raise ConfigError(
                f"{path} and what is mounted with it are larger than {_LARGEST >> 20} MiB; put it into an image"
            )
        if entry.isreg():
            with path.open("rb") as file:
                archive.addfile(entry, file)
        else:
            archive.addfile(entry)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be copied into a service: {exc.strerror}") from exc
