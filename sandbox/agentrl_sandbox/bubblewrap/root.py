"""The file system of a box, as arguments of bwrap: everything is read-only except the folders of the spec."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import ConfigError, SandboxError
from agentrl_sandbox.bubblewrap.box import INNER_UID, memory
from agentrl_sandbox.paths import absolute
from agentrl_sandbox.spec import SandboxSpec

_OF_ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl", "ca-certificates", "pki"),
    *("mime.types", "services", "protocols", "perl", "python3", "python3.11", "python3.12", "python3.13"),
)
"""Files of /etc that programs in the host's /usr need, and that tell nothing about the host."""
_OF_NETWORK = ("resolv.conf", "nsswitch.conf", "gai.conf")
_NOT_OF_IMAGE = {"proc", "dev", "sys", "tmp", "run"}


def arguments(spec: SandboxSpec, files: Sequence[int]) -> list[str]:
    """The arguments of bwrap for a spec. `files` are the descriptors from `etc`: /etc/passwd, /etc/group,
    /etc/hosts."""
    image = resolve(spec.image) if spec.image else None
    workdir, size = absolute(spec.workdir), spec.disk_mb << 20
    options = _of_image(image) if image else _of_host(spec)
    for file, name in zip(files, ("passwd", "group", "hosts"), strict=True):
        options += ["--perms", "0444", "--ro-bind-data", str(file), f"/etc/{name}"]
    options += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(size // 8),
        "--perms",
        "1777",
        "--tmpfs",
        "/dev/shm",
    ]
    options += ["--remount-ro", "/dev", "--perms", "1777", "--size", str(size // 8), "--tmpfs", "/tmp"]
    options += ["--perms", "0755", "--size", str(size - size // 4), "--tmpfs", workdir]
    for inside, outside in spec.sockets.items():
        options += ["--ro-bind", outside, inside]  # a read-only mount does not keep anyone from connecting
    options += ["--share-net"] if spec.network == "open" else []
    return [*options, "--remount-ro", "/", "--chdir", workdir]


def etc() -> list[int]:
    """Descriptors of new files /etc/passwd, /etc/group and /etc/hosts. The caller closes these after starting bwrap."""
    return [
        memory(f"agent:x:{INNER_UID}:{INNER_UID}::/tmp:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"),
        memory(f"agent:x:{INNER_UID}:\nnogroup:x:65534:\n"),
        memory("127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ]


def resolve(image: str) -> Path:
    """The folder of a root file system: `image` itself, or the folder into which the tar file `image` was unpacked.

    Raises SandboxError for a missing image.
    """
    path = Path(image).expanduser()
    if path.is_dir():
        return path.resolve()
    if not path.is_file():
        raise SandboxError(
            f"no image {image!r}: for bubblewrap, give a folder or a tar file with a root file system, "
            "or leave it out to use this machine's own programs"
        )
    with path.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    folder = _cache() / name
    if not folder.is_dir():
        _unpack(path, folder)
    return folder


def shell(image: str) -> tuple[str, str]:
    """The shell for commands: bash, or sh in an image without bash."""
    folder = resolve(image)
    return ("bash" if any(os.path.lexists(folder / name) for name in ("bin/bash", "usr/bin/bash")) else "sh", "-c")


def check(spec: SandboxSpec) -> None:
    """Raises ConfigError for settings that bubblewrap cannot enforce or provide."""
    workdir = absolute(spec.workdir)
    if not spec.workdir.startswith("/") or workdir in ("/", "/tmp") or workdir.startswith(("/usr", "/proc", "/dev")):
        raise ConfigError(f"workdir {spec.workdir!r} must be an absolute path to a separate folder, such as /work")
    if not spec.read_only:
        raise ConfigError("bubblewrap cannot make the root file system writable; leave read_only, or use docker")
    if spec.user != "agent":
        raise ConfigError(f"bubblewrap sandboxes have one user, agent, and not {spec.user!r}; use docker for others")
    for inside, outside in spec.sockets.items():
        if not Path(outside).is_socket():
            raise ConfigError(f"sockets: {outside} is not a Unix socket; start its server first")
        if not inside.startswith("/") or absolute(inside).startswith((f"{workdir}/", "/tmp/")):
            raise ConfigError(f"sockets: {inside} must be an absolute path outside of {workdir} and /tmp, as in /run")


def _of_host(spec: SandboxSpec) -> list[str]:
    options = ["--perms", "0755", "--dir", "/etc", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for name in _OF_ETC + (_OF_NETWORK if spec.network == "open" else ()):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return options


def _of_image(image: Path) -> list[str]:
    options = []
    for entry in sorted(os.scandir(image), key=lambda entry: entry.name):
        if entry.is_symlink():
            options += ["--symlink", os.readlink(entry.path), f"/{entry.name}"]
        elif entry.name not in _NOT_OF_IMAGE:
            options += ["--ro-bind", entry.path, f"/{entry.name}"]
    return options


def _cache() -> Path:
    """The folder of unpacked images. If this process is root, the users of boxes can enter the folder."""
    if os.geteuid() == 0:
        return Path("/var/cache/agentrl/images")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "agentrl", "images")


def _unpack(archive: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        command = ["tar", "-x", "--no-same-owner", "--exclude=./dev/*", "--exclude=dev/*", "-C", str(draft)]
        done = subprocess.run([*command, "-f", str(archive)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SandboxError(f"image {archive}: tar cannot unpack it: {' '.join(done.stderr.split())[:300]}")
        subprocess.run(["chmod", "-R", "a+rX,u+w", draft], check=True)
        for name in ("etc/passwd", "etc/group", "etc/hosts"):  # places for files of our own
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).touch()
        with contextlib.suppress(OSError):  # a parallel process was first
            draft.rename(folder)
    finally:
        if draft.exists():
            shutil.rmtree(draft)
