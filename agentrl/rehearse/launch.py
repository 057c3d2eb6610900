"""Reads the command that starts slime: from words, or from a launch script as bash expands it.

A script runs with stand-ins as its only programs. A stand-in records its words, and neither starts a program, ends a
process nor makes a folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError
from agentrl.slime.check.command import TRAIN_PROGRAMS

_SCRIPT_S = 60.0
"""The most seconds of a script."""
_HARMLESS = (
    *("dirname", "basename", "grep", "egrep", "fgrep", "seq", "tr", "wc", "awk", "gawk", "mawk", "head", "sort"),
    *("cut", "date", "env", "cat", "readlink", "realpath", "uname", "id", "whoami", "expr", "printf", "echo", "nproc"),
    *("test", "[", "true", "false", "ls", "stat", "jq", "which", "nohup", "paste", "rev", "bash", "sh", "uniq"),
)
"""Programs that a script may really run, for the values of flags."""
_STAND_INS = (
    *("agentrl", "ray", "python", "python3", "pkill", "killall", "sleep", "nvidia-smi", "rocm-smi", "ip", "ssh"),
    *("pdsh", "mkdir", "rm", "cp", "mv", "ps", "hostname", "pip", "pip3", "sudo", "docker", "curl", "wget", "hf"),
)
"""Programs with a stand-in. A program in neither list gets a stand-in by `_UNKNOWN`."""
_SED = """#!/bin/bash
for word in "$@"; do case "$word" in -i* | --in-place*) exit 0 ;; esac; done
exec {sed} "$@"
"""
_STAND_IN = """#!/bin/bash
shopt -s extglob
case "${{0##*/}} $* " in
  pip?(3)\\ @(list|show|--version)\\ *) PYTHONPATH={path} exec {pip} "$@" ;;
  python?(3)\\ -m\\ agentrl.slime.router\\ *) PYTHONPATH={path} exec {python} "$@" ;;
esac
exec {python} -IS {recorder} "${{0##*/}}" "$@"
"""
"""Some calls are really made: a script takes values of flags from their output."""
_RECORDER = """
import json, os, sys
words = sys.argv[1:] if sys.argv and sys.argv[0] == __file__ else list(sys.orig_argv)
line = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "record.jsonl"), "a") as file:
    file.write(json.dumps(line) + "\\n")
sys.stdout.flush()
os._exit(0)
"""
"""Also a sitecustomize, for a Python that the script names by its path."""
_UNKNOWN = "BASH_FUNC_command_not_found_handle%%"
"""The variable with a function of bash, which bash calls for an unknown program."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *self.values))


class Flags(tuple[Flag, ...]):
    """Flags in the order of the command line. Of a repeated flag the last one counts, as for argparse."""

    __slots__ = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> Flags:
        flags: list[Flag] = []
        for word in words:
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                flags.append(Flag(name, (value,) if equals else ()))
            elif flags:
                flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
        return cls(flags)

    def values(self, name: str) -> tuple[str, ...] | None:
        """The values of a flag. None without the flag."""
        return next((flag.values for flag in reversed(self) if flag.name == name), None)

    def text(self, name: str, default: str = "") -> str:
        return (self.values(name) or (default,))[0]

    def number(self, name: str, default: int) -> int:
        """The flag's first value as a whole number; `default` for a missing flag, and for a value of another kind."""
        with suppress(ValueError):
            return int(float(self.text(name, str(default))))
        return default

    def has(self, name: str) -> bool:
        return self.values(name) is not None

    def words(self) -> list[str]:
        return [word for flag in self for word in (flag.name, *flag.values)]


@dataclass(frozen=True, slots=True)
class SlimeLaunch:
    """A start of slime's training program."""

    program: Path
    flags: Flags
    variables: Mapping[str, str]
    """The environment of the program and, under Ray, of its workers."""
    folder: Path
    """The working folder."""
    source: str = "the command"
    notes: tuple[str, ...] = ()
    """Remarks about the capture, for the user."""
    ray_gpus: int | None = None
    """The GPUs that the script's `ray start --head` names."""

    @property
    def python_path(self) -> list[str]:
        return [folder for folder in self.variables.get("PYTHONPATH", "").split(os.pathsep) if folder]


def read(words: Sequence[str]) -> SlimeLaunch:
    """Read a command, or run a script up to its command. Raises ConfigError."""
    first = Path(words[0])
    if first.suffix == ".sh" or (first.name not in TRAIN_PROGRAMS and _is_shell(first)):
        return captured(first, words[1:])
    return _launch(words, dict(os.environ), Path.cwd(), (Path.cwd(),))


def _is_shell(file: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError), file.open(encoding="utf-8") as lines:
        return bool(re.match(r"#!.*\b(ba)?sh\b", lines.readline()))
    return False


def _launch(
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    roots: Sequence[Path],
    source: str = "the command",
    notes: tuple[str, ...] = (),
    ray_gpus: int | None = None,
) -> SlimeLaunch:
    index = _program_index(words)
    if index is None:
        raise ConfigError(
            f"{' '.join(words)[:80]}: no {' or '.join(TRAIN_PROGRAMS)} in it; write the script, or `-- python3 "
            "/path/to/slime/train.py ...`"
        )
    variables = dict(variables)
    before = words[:index]
    if "submit" in before:
        variables |= _job_variables(before)
        folder = Path(_option(before, "--working-dir") or folder)
    for word in before:  # env NAME=value python3 train.py
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            variables[name] = value
    program = _existing(Path(words[index]), (folder, *roots))
    return SlimeLaunch(program, Flags.of(words[index + 1 :]), variables, folder, source, notes, ray_gpus)


def _program_index(words: Sequence[str]) -> int | None:
    return next((index for index, word in enumerate(words) if Path(word).name in TRAIN_PROGRAMS), None)


def _existing(program: Path, roots: Sequence[Path]) -> Path:
    for root in roots:
        if (file := root / program).is_file():
            return file.resolve()
    raise ConfigError(f"{program}: no such file below {roots[0]}; write its path, or go to slime's folder first")


def _option(words: Sequence[str], name: str) -> str:
    """The last value of an option, written as `--name value` or `--name=value`."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    values += [value for word, value in pairwise(words) if word == name]
    return values[-1] if values else ""


def _job_variables(words: Sequence[str]) -> dict[str, str]:
    """The variables that Ray sets for a submitted job. Raises ConfigError."""
    text, file = _option(words, "--runtime-env-json"), _option(words, "--runtime-env")
    try:
        if file:
            text = Path(file).read_text(encoding="utf-8")
        environment: Any = yaml.safe_load(text) if file else json.loads(text or "{}")
        return {str(name): str(value) for name, value in environment.get("env_vars", {}).items()}
    except (ValueError, AttributeError, OSError, yaml.YAMLError) as exc:
        where = f"--runtime-env {file}" if file else f"--runtime-env-json {text}"
        raise ConfigError(f"{where}: no JSON object with `env_vars` ({exc}); check its quotes") from exc


# ---- scripts


def captured(script: Path, words: Sequence[str] = ()) -> SlimeLaunch:
    """The command that a script starts. `words` are the script's arguments.

    Raises ConfigError if the script is missing, does not end, or ends before it starts slime.
    """
    if not script.is_file():
        raise ConfigError(f"{script}: no such file; name the launch script, or write `-- python3 train.py ...`")
    with tempfile.TemporaryDirectory(prefix="agentrl-launch-") as place:
        folder = Path(place)
        programs = _stand_ins(folder)
        output = _played(script, words, _script_variables(folder, programs))
        record = folder / "record.jsonl"
        text = record.read_text(encoding="utf-8") if record.exists() else ""
        calls = [json.loads(line) for line in text.splitlines()]
        added = {str(folder), str(programs)}
    return _of_calls(script, calls, output, added)


def _stand_ins(folder: Path) -> Path:
    """Write the programs of a script, and return their folder."""
    programs = folder / "bin"
    programs.mkdir()
    recorder = folder / "sitecustomize.py"
    recorder.write_text(_RECORDER, encoding="utf-8")
    stand_in = folder / "stand-in"
    python, path = shlex.quote(sys.executable), shlex.quote(os.environ.get("PYTHONPATH", ""))
    pip = next((shlex.quote(file) for name in ("pip", "pip3") if (file := shutil.which(name))), f"{python} -m pip")
    text = _STAND_IN.format(python=python, pip=pip, path=path, recorder=shlex.quote(str(recorder)))
    stand_in.write_text(text, encoding="utf-8")
    stand_in.chmod(0o755)
    for name in _STAND_INS:
        (programs / name).symlink_to(stand_in)
    for name in _HARMLESS:
        if program := shutil.which(name):
            (programs / name).symlink_to(program)
    if sed := shutil.which("sed"):
        (programs / "sed").write_text(_SED.format(sed=sed), encoding="utf-8")
        (programs / "sed").chmod(0o755)
    (programs / "tee").symlink_to(shutil.which("cat") or "/bin/cat")
    return programs


def _script_variables(folder: Path, programs: Path) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name != "CHECK"}  # run.sh would end after it
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return variables | {"PATH": str(programs), "PYTHONPATH": path, _UNKNOWN: f'() {{ "{programs}/ray" "$@"; }}'}


def _played(script: Path, words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run the script, and return the end of its output. Raises ConfigError if the script does not end."""
    bash = shutil.which("bash")
    if bash is None:
        raise ConfigError(f"{script}: there is no bash here to read it; write `-- python3 train.py ...`")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [bash, str(script), *words],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(_SCRIPT_S)
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{script} has not ended after {_SCRIPT_S:.0f} s, with programs that only record; write `-- python3 "
                "train.py ...`"
            ) from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return output.read()


def _of_calls(script: Path, calls: Sequence[Mapping[str, Any]], output: str, folders: set[str]) -> SlimeLaunch:
    """The launch in the recorded calls. A call of Ray or Python counts before a call of `agentrl check`."""
    starts = [call for call in calls if _program_index(call["words"]) is not None]
    starts.sort(key=lambda call: Path(call["words"][0]).name == "agentrl")
    if not starts:
        raise ConfigError(f"{script} ended before it started {' or '.join(TRAIN_PROGRAMS)}: {_last_words(output)}")
    call = starts[0]
    variables = call["variables"]
    heads = [past for past in calls if past["words"][:2] == ["ray", "start"] and "--head" in past["words"]]
    if heads and "submit" in call["words"]:  # a job's workers have the environment in which Ray was started
        variables = heads[-1]["variables"]
    gpus = _option(heads[-1]["words"], "--num-gpus") if heads else ""
    others = {tuple(start["words"]) for start in starts if Path(start["words"][0]).name != "agentrl"}
    notes = (f"{script.name} starts slime {len(others)} times; the first is rehearsed",) if len(others) > 1 else ()
    roots = (Path.cwd(), *script.resolve().parents)
    count = int(gpus) if gpus.isdecimal() else None
    launch = _launch(call["words"], variables, Path(call["folder"]), roots, str(script), notes, count)
    return replace(launch, variables=dict(_without(launch.variables, folders)))


def _without(variables: Mapping[str, str], hidden: set[str]) -> Iterator[tuple[str, str]]:
    """The script's variables, without the changes that were made for the capture."""
    for name, value in variables.items():
        if name in ("PATH", "PYTHONPATH"):
            folders = [folder for folder in value.split(os.pathsep) if folder and folder not in hidden]
            before = os.environ.get(name, "")
            if name == "PATH":
                folders += [folder for folder in before.split(os.pathsep) if folder not in folders]
            value = os.pathsep.join(folders)
        if name not in (_UNKNOWN, "_", "SHLVL"):
            yield name, value


def _last_words(output: str) -> str:
    """The line of a script's output that tells most likely why the script ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("+")]
    if not lines:
        return "it printed nothing"
    errors = [
        line for line in lines if re.search(r"error|not set|no such|null|unbound|: line \d+:", line, re.IGNORECASE)
    ]
    return (errors or lines)[-1][:300]
