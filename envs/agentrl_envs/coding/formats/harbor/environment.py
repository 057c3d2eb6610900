"""The image of a task: the one that it names, or its environment/ folder, from which a back end builds one.

A folder is built as it is, unless images are mapped to those of this machine, or packages are in them already. Then it
is built from a copy with a changed Dockerfile.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl import ConfigError
from agentrl._util.yaml_files import read_yaml
from agentrl_envs.coding.formats.harbor import shell_words
from agentrl_envs.coding.formats.harbor.dockerfile import Instruction, assignments, filled, parse

_COMPOSE_KEYS = ("build", "image", "command", "environment", "volumes", "deploy", "network_mode")
"""Settings of a service that equal Harbor's default, or that any sandbox fulfils."""
_LOGS = re.compile(r"\$\{HOST_\w+_LOGS_PATH\}:\$\{ENV_\w+_LOGS_PATH\}")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")


class CannotRunError(ConfigError):
    """The task may be right, but cannot be run here. The message gives the reason and the remedy."""


@dataclass(slots=True)
class ImageSource:
    """What an environment is made of."""

    image: str
    """A name, or the path of a folder with a Dockerfile."""
    workdir: str = "/"
    user: str = "root"
    left_out: list[str] = field(default_factory=list)
    """Commands of the Dockerfile that install packages and were left out, because the base image should have the
    packages.
    """
    fetches: list[str] = field(default_factory=list)
    """Commands of the build that need a network, each with its line: "line 3: curl"."""
    has_tests: bool = False
    """The image itself may have files in /tests."""


def named(image: str, bases: Mapping[str, str]) -> str:
    """This machine's image for `image`, if `bases` has one; else `image` itself."""
    plain = image.removeprefix("docker.io/").removeprefix("library/")
    return bases.get(image, bases.get(plain, image))


def made_from(folder: Path, *, bases: Mapping[str, str], installed: bool) -> ImageSource:
    """The image of a folder with a Dockerfile.

    With `installed`, its base image is taken to have the packages that it installs: those commands are left out, and
    other commands in the same RUN may fail. Raises CannotRunError.
    """
    context = _context(folder)
    try:
        text = (folder / "Dockerfile").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CannotRunError("environment/ has no Dockerfile, and task.toml names no docker_image") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{folder / 'Dockerfile'}: {exc}") from exc
    reading = _DockerfileReader(bases, installed)
    edited = reading.read(text)
    return ImageSource(
        image=str(folder if edited == text and context == folder else _copy(context, edited)),
        workdir=reading.workdir,
        user=reading.user,
        left_out=reading.left_out,
        fetches=reading.fetches,
        has_tests="/tests" in text,
    )


def _context(folder: Path) -> Path:
    """The folder whose files a build may copy: environment/, or the one in a docker-compose.yaml of one service."""
    name = next((name for name in _COMPOSE if (folder / name).is_file()), None)
    if name is None:
        return folder
    build = _only_service(folder / name).get("build") or "."
    place = str(build.get("context", ".") if isinstance(build, dict) else build).replace("${CONTEXT_DIR}", ".")
    context = (folder / place).resolve()
    if context not in (folder.resolve(), folder.resolve().parent):
        raise CannotRunError(f"environment/{name}: a build in {place} is not supported; the task's own folder is")
    return folder if context == folder.resolve() else context


def _only_service(file: Path) -> dict[str, Any]:
    """The service main. Raises CannotRunError if there are others, or if it needs more than a sandbox provides."""
    services = read_yaml(file, such_as="services: {main: {build: .}}").get("services")
    if not isinstance(services, dict) or not isinstance(services.get("main", 0), dict | None):
        raise ConfigError(f"{file} names no service main; write `services: {{main: {{build: .}}}}`")
    main: dict[str, Any] = services["main"] or {}
    if others := sorted(set(services) - {"main"}):
        raise CannotRunError(f"environment/{file.name}: services beside main ({', '.join(others)}) are not supported")
    asked = [key for key in main if key not in _COMPOSE_KEYS]
    asked += [str(one) for one in main.get("volumes") or () if not _LOGS.fullmatch(str(one))]
    asked += [str(one) for one in main.get("environment") or () if "${" not in str(one)]
    if asked:
        raise CannotRunError(f"environment/{file.name}: {asked[0]} of the service main is not supported")
    return main


class _DockerfileReader:
    """A Dockerfile as it is read and edited, an instruction at a time."""

    def __init__(self, bases: Mapping[str, str], installed: bool) -> None:
        self.bases, self.installed = bases, installed
        self.workdir, self.user = "/", "root"
        self.left_out: list[str] = []
        self.fetches: list[str] = []
        self._variables: dict[str, str] = {}
        self._before: dict[str, str] = {}
        """The variables of ARG lines in front of the first FROM, which alone know them."""
        self._stages: set[str] = set()

    def read(self, text: str) -> str:
        """The Dockerfile to build instead."""
        lines = text.splitlines()
        for one in reversed(list(self._edits(text))):
            lines[one.line - 1 : one.end - 1] = [one.value]
        return "\n".join(lines) + "\n" if lines != text.splitlines() else text

    def _edits(self, text: str) -> list[Instruction]:
        """The replaced instructions -> their replacements."""
        found = []
        for one in parse(text):
            replaced = {"FROM": self._from, "RUN": self._run}.get(one.name, self._other)(one)
            if replaced is not None:
                found.append(Instruction(one.line, one.end, one.name, replaced))
        return found

    def _from(self, one: Instruction) -> str | None:
        if not self._stages:
            self._before = dict(self._variables)
        image, *rest = one.value.split()
        stage = rest[1].lower() if len(rest) > 1 and rest[0].lower() == "as" else ""
        self._variables, self.workdir, self.user = {}, "/", "root"
        wanted = filled(image, self._before)
        local = wanted if wanted.lower() in self._stages else named(wanted, self.bases)
        self._stages |= {stage, str(len(self._stages))}
        return None if local == wanted else " ".join(["FROM", local, *rest])

    def _other(self, one: Instruction) -> None:
        if one.name in ("ARG", "ENV"):
            for name, value in assignments(one).items():
                self._variables[name] = filled(value, self._variables)
        elif one.name == "WORKDIR":
            self.workdir = posixpath.normpath(posixpath.join(self.workdir, filled(one.value, self._variables)))
        elif one.name == "USER":
            self.user = filled(one.value, self._variables).partition(":")[0].strip() or "root"

    def _run(self, one: Instruction) -> str | None:
        listed = one.listed()
        script = " ".join(listed) if listed is not None else one.value
        edited = None
        if self.installed and listed is None and not one.documents:
            edited = self._without_installs(one)
        told = script if edited is None else edited.removeprefix("RUN ")
        self.fetches += [f"line {one.line}: {program}" for program in shell_words.fetches(told)]
        return edited

    def _without_installs(self, one: Instruction) -> str | None:
        texts = [text for _, text in shell_words.commands(one.value) if text]
        kept = [text for text in texts if not shell_words.installs(text)]
        if len(kept) == len(texts):
            return None
        self.left_out += [f"line {one.line}: {text}" for text in texts if text not in kept]
        return "RUN " + "; ".join(f"{{ {text}; }} || true" for text in kept) if kept else ""


def _copy(folder: Path, dockerfile: str) -> Path:
    """The folder with another Dockerfile, in the cache under the hash of its content."""
    digest = hashlib.sha256(dockerfile.encode())
    for path in sorted(folder.rglob("*")):
        digest.update(f"\0{path.relative_to(folder)}\0{path.lstat().st_mode:o}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "environments"
    made = cache / digest.hexdigest()[:32]
    if made.is_dir():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache, prefix=".draft-"))
    try:
        shutil.copytree(folder, draft / "made", symlinks=True)
        (draft / "made" / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        try:
            (draft / "made").rename(made)
        except OSError:
            if not made.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made
