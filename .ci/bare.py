"""README's quickstart with the built wheels where nothing else is: no git, no compiler, no HOME.

    python .ci/bare.py DIST              here, on this Python, such as in a slim container
    python .ci/bare.py DIST PYTHON...    in an empty root of bubblewrap, for each of these interpreters

An empty root holds the Python, the libraries of C, the settings of pip, and no program. With AGENTRL_BARE=core the
commands that need torch are left out, for a Python for which there is no wheel of torch.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABSENT = ("git", "gcc", "cc", "clang", "make")
SYSTEM = ("/lib", "/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/etc/ssl", "/etc/ld.so.cache")
NETWORK = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip")


def quickstart() -> list[list[str]]:
    """The commands of README's first block for a shell."""
    block = re.search(r"```bash\n(agentrl init .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return [
        shlex.split(command, comments=True)
        for line in block[1].splitlines()
        for command in line.split("#")[0].split("&&")
    ]


def play(dist: Path) -> None:
    """Install the wheel with the extra `train` into a new environment, and run the quickstart."""
    core = os.environ.get("AGENTRL_BARE") == "core"
    wheel, commands = "agentrl-sdk" if core else "agentrl-sdk[train]", quickstart()
    commands = [words for words in commands if words[1] not in ("train", "show")] if core else commands
    assert "HOME" not in os.environ, "run this script by env -i PATH=$PATH"
    assert not (present := [name for name in ABSENT if shutil.which(name)]), f"{present} can be reached"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place, programs = Path(name), Path(name) / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        pip = [programs / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile"]
        (file,) = dist.glob("agentrl_sdk-*.whl")
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{wheel} @ {file.resolve().as_uri()}"], check=True)
        subprocess.run([*pip, wheel], check=True)  # as error messages advise: the name need not be in an index
        for command in commands:
            print("$", *command, flush=True)
            if command[0] == "cd":
                place /= command[1]
                continue
            subprocess.run([programs / command[0], *command[1:]], check=True, cwd=place)
    part = "all but its training" if core else "all of it"
    print(
        f"Python {sys.version.split()[0]}: README's quickstart, {part}, {time.monotonic() - began:.0f} s: ok",
        flush=True,
    )


def in_empty_root(dist: Path, python: str) -> None:
    """Call this script in a root with the interpreter, its libraries and the settings of pip alone."""
    show = [python, "-c", "import sys; print(sys.base_prefix, sys.executable, sep='\\n')"]
    prefix, executable = subprocess.run(show, check=True, capture_output=True, text=True).stdout.split()
    files = (str(ROOT / name) for name in ("README.md", "constraints.txt", ".ci/bare.py"))
    mounts = [path for path in (*SYSTEM, *NETWORK, prefix, *files, str(dist), *folders_of_pip()) if Path(path).exists()]
    settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "AGENTRL_BARE"))}
    with tempfile.TemporaryDirectory() as folder:
        words = ["bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--clearenv"]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", folder, "/tmp", "--chdir", "/tmp"]
        words += [word for path in dict.fromkeys(mounts) for word in ("--ro-bind", path, path)]
        for name, value in {"PATH": "/usr/bin:/bin", **settings}.items():
            words += ["--setenv", name, value]
        subprocess.run([*words, executable, __file__, str(dist)], check=True)


def folders_of_pip() -> Iterator[str]:
    """The folders that the machine's settings of pip name: packages besides those of a registry."""
    show = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(show, capture_output=True, text=True, check=False).stdout
    for path in re.findall(r"(?:file://)?(/[\w./-]+)", listed):
        yield path.removesuffix("/simple")


if __name__ == "__main__":
    wheels, *pythons = sys.argv[1:]
    for interpreter in pythons:
        in_empty_root(Path(wheels).resolve(), interpreter)
    if not pythons:
        play(Path(wheels).resolve())
