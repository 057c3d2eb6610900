"""The folder of a Dockerfile as a tar file for the engine to build, and the hash of the content."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_START = r"^[ \t]*(?:ONBUILD[ \t]+)?(?:RUN|COPY|ADD)\b"
_FLAG = re.compile(rf"{_START}[ \t]+(?:--\S+[ \t]+)*?--(?!(?:from|chown)\b)([a-z-]+)", re.IGNORECASE | re.MULTILINE)
_HEREDOC = re.compile(
    rf"{_START}.*[ \t]\d*<<-?(['\"]?)([A-Za-z_][\w.]*)\1(?!\S).*\n(?:.*\n)*?\t*\2[ \t]*$", re.IGNORECASE | re.MULTILINE
)
_PLATFORM = re.compile(
    r"^[ \t]*(?:FROM[ \t]+--platform=\$\{?|ARG[ \t]+)((?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)\b)(?![ \t]*=)",
    re.IGNORECASE | re.MULTILINE,
)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?!-)(\S+)(?:[ \t]+AS[ \t]+(\S+))?[ \t]*$", re.IGNORECASE | re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t]*\n(?:[ \t]*\n)*")


def pack(folder: Path, target: IO[bytes]) -> str:
    """Write the tar file, without the paths in `.dockerignore`. Returns the hash of names, modes, links and
    contents.
    """
    digest = hashlib.sha256()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in _paths(folder):
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            if entry is None:  # a socket
                continue
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            digest.update(f"{entry.name}\0{entry.mode:o}\0{entry.linkname}\0{entry.size}\0".encode(errors="replace"))
            if entry.isreg():
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                    file.seek(0)
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return digest.hexdigest()


def needs_buildkit(folder: Path) -> str:
    """A part of the folder's Dockerfile that requires BuildKit; empty if no part requires BuildKit."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8", errors="replace")
    text = _CONTINUED.sub(" ", _COMMENT.sub("", text))
    if match := _FLAG.search(text):
        return f"--{match[1]}"
    if match := _HEREDOC.search(text):
        return f"the here-document <<{match[2]}"
    if match := _PLATFORM.search(text):  # empty without BuildKit
        return f"the variable {match[1]}"
    return ""


def bases(folder: Path) -> list[str]:
    """The names of a Dockerfile's base images, without images named by a variable or with a platform."""
    stages, names = {"scratch"}, list[str]()
    for base, stage in _FROM.findall((folder / "Dockerfile").read_text(encoding="utf-8", errors="replace")):
        if base.lower() not in stages and "$" not in base:
            names.append(base)
        stages.add(stage.lower())
    return names


def _paths(folder: Path) -> Iterator[Path]:
    """The paths to pack, sorted. Every folder is searched, as an ignored folder may have files that are not ignored."""
    rules = _rules(folder / ".dockerignore")
    for top, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*files, *folders]):
            path = Path(top, name)
            inside = path.relative_to(folder).as_posix()
            if inside in ("Dockerfile", ".dockerignore") or not _is_left_out(inside, rules):
                yield path


def _rules(file: Path) -> list[tuple[re.Pattern[str], bool]]:
    """The rules of .dockerignore, each with its pattern. True excludes paths, False includes paths again."""
    if not file.is_file():
        return []
    lines = [line.strip() for line in file.read_text().splitlines()]
    return [
        (_pattern(line.removeprefix("!").strip("/")), not line.startswith("!"))
        for line in lines
        if line and not line.startswith("#") and line.removeprefix("!").strip("/.")
    ]


def _pattern(text: str) -> re.Pattern[str]:
    """The pattern by Docker's rules: `**` is any number of folders, and everything below a matching folder matches."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", text.removeprefix("./"))
    return re.compile(
        "".join(parts.get(piece, piece if piece.startswith("[") else re.escape(piece)) for piece in pieces) + "(?:/.*)?"
    )


def _is_left_out(path: str, rules: list[tuple[re.Pattern[str], bool]]) -> bool:
    """Whether the rules exclude a path. The last matching rule decides."""
    left_out = False
    for pattern, leaves_out in rules:
        if pattern.fullmatch(path):
            left_out = leaves_out
    return left_out
