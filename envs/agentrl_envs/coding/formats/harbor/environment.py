"""The image of a task: the one that it names, or its environment/ folder, from which a back end builds one.

A folder is built as it is, unless images are mapped to those of this machine, or packages are in them already. Then it
is built from a copy with a changed Dockerfile.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from agentrl import ConfigError
from agentrl_envs.coding.formats import shell_words
from agentrl_envs.coding.formats.harbor.compose import (
    MAIN_IMAGE,
    Build,
    MainService,
    plain_name,
    read_compose,
)
from agentrl_envs.coding.formats.harbor.compose_rules import CannotRunError
from agentrl_envs.coding.formats.harbor.dockerfile import Instruction, assignments, filled, parse
from agentrl_sandbox.services import ServiceGroup


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
    main: MainService = field(default_factory=MainService)
    """What a compose file has about the agent's container."""
    services: ServiceGroup | None = None


def named(image: str, bases: Mapping[str, str]) -> str:
    """This machine's image for `image`, if `bases` has one; else `image` itself."""
    plain = image.removeprefix("docker.io/").removeprefix("library/")
    return bases.get(image, bases.get(plain, image))


def made_from(
    folder: Path,
    *,
    bases: Mapping[str, str],
    installed: bool,
    image: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
    ready_s: float = 600.0,
) -> ImageSource:
    """The image of an environment folder, which `image` names or its Dockerfile builds, and its services.

    With `installed`, base images are taken to have the packages that Dockerfiles install: those commands are left out,
    and other commands in the same RUN may fail. `variables` are those of the task for its compose file. Raises
    CannotRunError.
    """
    compose = read_compose(folder, variables, ready_s)
    main, build = compose.main, compose.main.image
    if image:
        made = ImageSource(image=named(plain_name(image), bases), has_tests=True)
    elif isinstance(build, str) and not (folder / "Dockerfile").is_file():
        made = ImageSource(image=named(build, bases), has_tests=True)
    else:
        made = _built(build if isinstance(build, Build) else _own_build(folder), bases, installed)
    made.main = main
    made.workdir, made.user = main.workdir or made.workdir, main.user or made.user
    if compose.group is not None:
        built = {name: _built(one, bases, installed) for name, one in compose.builds.items()}
        for name, one in built.items():
            made.left_out += [f"{name}: {line}" for line in one.left_out]
            made.fetches += [f"{name}: {line}" for line in one.fetches]
        images = {name: one.image for name, one in built.items()}
        made.services = _with_images(compose.group, images, made.image, bases)
    return made


def _with_images(group: ServiceGroup, built: Mapping[str, str], main: str, bases: Mapping[str, str]) -> ServiceGroup:
    services = {}
    for name, one in group.services.items():
        image = built.get(name) or (main if one.image == MAIN_IMAGE else named(one.image, bases))
        services[name] = one.model_copy(update={"image": image})
    return group.model_copy(update={"services": services})


def _own_build(folder: Path) -> Build:
    try:
        return Build(folder.resolve(), (folder / "Dockerfile").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CannotRunError("environment/ has no Dockerfile, and task.toml names no docker_image") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{folder / 'Dockerfile'}: {exc}") from exc


def _built(build: Build, bases: Mapping[str, str], installed: bool) -> ImageSource:
    """The folder is built as it is, if its own Dockerfile is the one that is needed."""
    reading = _DockerfileReader(bases, installed, build.args, build.target)
    edited = reading.read(build.dockerfile)
    own = build.context / "Dockerfile"
    is_own = own.is_file() and own.read_bytes() == edited.encode()
    return ImageSource(
        image=str(build.context if is_own else _copy(build.context, edited)),
        workdir=reading.workdir,
        user=reading.user,
        left_out=reading.left_out,
        fetches=reading.fetches,
        has_tests="/tests" in build.dockerfile,
    )


class _DockerfileReader:
    """A Dockerfile as it is read and edited, an instruction at a time."""

    def __init__(self, bases: Mapping[str, str], installed: bool, args: Mapping[str, str], target: str) -> None:
        self.bases, self.installed, self.args, self.target = bases, installed, args, target
        self.workdir, self.user = "/", "root"
        self.left_out: list[str] = []
        self.fetches: list[str] = []
        self._variables: dict[str, str] = {}
        self._before: dict[str, str] = {}
        """The variables of ARG lines in front of the first FROM, which alone know them."""
        self._stages: set[str] = set()

    def read(self, text: str) -> str:
        """The Dockerfile to build instead. Raises CannotRunError if it has no stage of the wanted name."""
        text = self._up_to_target(text)
        lines = text.splitlines()
        for one in reversed(list(self._edits(text))):
            lines[one.line - 1 : one.end - 1] = [one.value]
        return "\n".join(lines) + "\n" if lines != text.splitlines() else text

    def _up_to_target(self, text: str) -> str:
        """The Dockerfile without the stages behind the wanted one, which it cannot need."""
        if not self.target:
            return text
        stages = [one for one in parse(text) if one.name == "FROM"]
        names = [_stage(one) for one in stages]
        if self.target.lower() not in names:
            raise CannotRunError(f"a Dockerfile has no stage {self.target}, which the compose file builds")
        after = stages[names.index(self.target.lower()) + 1 :]
        return "\n".join(text.splitlines()[: after[0].line - 1]) + "\n" if after else text

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
        stage = _stage(one)
        self._variables, self.workdir, self.user = {}, "/", "root"
        wanted = filled(image, self._before)
        local = wanted if wanted.lower() in self._stages else named(wanted, self.bases)
        self._stages |= {stage, str(len(self._stages))}
        return None if local == wanted else " ".join(["FROM", local, *rest])

    def _other(self, one: Instruction) -> str | None:
        if one.name == "ARG" and (name := one.value.split("=")[0].strip()) in self.args:
            self._variables[name] = self.args[name]
            return f"ARG {name}={shlex.quote(self.args[name])}"
        if one.name in ("ARG", "ENV"):
            for name, value in assignments(one).items():
                self._variables[name] = filled(value, self._variables)
        elif one.name == "WORKDIR":
            self.workdir = posixpath.normpath(posixpath.join(self.workdir, filled(one.value, self._variables)))
        elif one.name == "USER":
            self.user = filled(one.value, self._variables).partition(":")[0].strip() or "root"
        return None

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


def _stage(one: Instruction) -> str:
    """The name that a FROM gives to its stage, in small letters; empty: none."""
    found = one.value.split()
    return found[2].lower() if len(found) > 2 and found[1].lower() == "as" else ""


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
