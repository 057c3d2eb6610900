"""The file system of a base image, from packages that are installed on this Debian machine: no registry is needed.

base_image.py FOLDER writes FOLDER/base-<hash>.tar, unless it is there, and prints its path. The hash is that of the
packages' versions and of this file. Documentation and translations are left out.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    "bash dash coreutils findutils grep sed tar gzip diffutils procps util-linux python3 python3-pytest git patch mawk"
)
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bash-completion|bug|zoneinfo|gitweb)/")
_MADE = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/work:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
_FOLDERS = {"tmp": 0o1777, "work": 0o755, "root": 0o700, "dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755}


def main() -> None:
    folder = Path(sys.argv[1])
    installed = _installed()
    names = _closure(installed)
    recipe = Path(__file__).read_bytes() + "\n".join(f"{name} {installed[name][0]}" for name in names).encode()
    target = folder / f"base-{hashlib.sha256(recipe).hexdigest()[:16]}.tar"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        with tarfile.open(partial, "w") as tar:
            _write(tar, _files([installed[name][1] for name in names]))
        partial.replace(target)
    print(target)


def _installed() -> dict[str, tuple[str, str, list[list[str]]]]:
    """Of each installed package, and each name that it provides: version, full name, what it depends on."""
    form = "${db:Status-Abbrev}\t${Package}\t${Version}\t${binary:Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    output = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[str, str, list[list[str]]]] = {}
    for line in output.splitlines():
        status, name, version, full, depends, provides = line.split("\t")
        if status.startswith("ii"):
            needs = [[_name(one) for one in clause.split("|")] for clause in depends.split(",") if clause.strip()]
            found[name] = (version, full, needs)
            for other in filter(None, map(_name, provides.split(","))):
                found.setdefault(other, found[name])
    return found


def _name(clause: str) -> str:
    """The package's name in a clause such as ` libc6:any (>= 2.36)`."""
    return re.split(r"[ :(]", clause.strip(), maxsplit=1)[0]


def _closure(installed: dict[str, tuple[str, str, list[list[str]]]]) -> list[str]:
    names, todo = set[str](), PACKAGES.split()
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += (one for clause in installed[name][2] for one in clause if one in installed)
    return sorted(names)


def _files(packages: list[str]) -> list[str]:
    """The paths of all files and folders, in order, with links such as /lib -> usr/lib followed."""
    output = subprocess.run(["dpkg", "-L", *packages], check=True, capture_output=True, text=True).stdout
    found = {_real(path) for path in output.splitlines() if path.startswith("/") and path != "/."}
    found |= {link for link in ("/bin", "/sbin", "/lib", "/lib64", "/usr/bin/sh") if os.path.islink(link)}
    found |= {_compiled(path) for path in found if path.endswith(".py")}
    for link in _alternatives():
        if os.path.realpath(link) in found:
            found |= {link, f"/etc/alternatives/{Path(os.readlink(link)).name}"}
    return sorted(path for path in found if os.path.lexists(path) and not _LEFT_OUT.match(path))


def _real(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"


def _compiled(path: str) -> str:
    """Where Python keeps a module compiled. Installation wrote it; a read-only root could not."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name[:-3]}.{_tag()}.pyc"


@functools.cache
def _tag() -> str:
    """As in cpython-311, of the system's Python."""
    show = "import sys; print(sys.implementation.cache_tag)"
    return subprocess.run(["/usr/bin/python3", "-c", show], check=True, capture_output=True, text=True).stdout.strip()


def _alternatives() -> Iterator[str]:
    for entry in os.scandir("/usr/bin"):
        if entry.is_symlink() and os.readlink(entry.path).startswith("/etc/alternatives/"):
            yield entry.path


def _write(tar: tarfile.TarFile, paths: list[str]) -> None:
    for name, mode in _FOLDERS.items():
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, mode
        folder.uid = folder.gid = 1000 if name == "work" else 0
        tar.addfile(folder)
    for name, text in _MADE.items():
        file = tarfile.TarInfo(name)
        file.size = len(text)
        tar.addfile(file, io.BytesIO(text.encode()))
    for path in paths:
        if path.strip("/") not in {*_MADE, *_FOLDERS}:
            tar.add(path, path.lstrip("/"), recursive=False, filter=_plain)


def _plain(file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without this machine's users. Times stay: Python compares them with those that its compiled modules hold."""
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file


if __name__ == "__main__":
    main()
