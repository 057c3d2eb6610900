"""The image of a task: a named image, or an environment/ folder, from which a back end builds the image.

The folder is built unchanged, unless images are mapped to images of this machine, or packages are installed already.
Then a copy with a changed Dockerfile is built.
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
    """The image and the services of an environment."""

    image: str
    """The name of an image, or the path of a folder with a Dockerfile."""
    workdir: str = "/"
    user: str = "root"
    left_out: list[str] = field(default_factory=list)
    """Install commands that were left out of the Dockerfile, because the base image should have the packages."""
    fetches: list[str] = field(default_factory=list)
    """Commands of the build that need a network, with their lines: "line 3: curl"."""
    has_tests: bool = False
    """Whether the image itself may have files in /tests."""
    main: MainService = field(default_factory=MainService)
    """The compose file's settings of the agent's container."""
    services: ServiceGroup | None = None


def named(image: str, bases: Mapping[str, str]) -> str:
    """This machine's image for `image`, if `bases` maps `image`; else `image`."""
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
    """The image of an environment folder (the image `image`, or a build of the Dockerfile), and the services.

    `installed`: base images have the packages that Dockerfiles install. Install commands are left out, and other
    commands in the same RUN may fail. `variables` are the task's variables for the compose file. Raises CannotRunError.
    """
    compose = read_compose(folder, variables, ready_s)
    main, build = compose.main, compose.main.image
    if image:
        source = ImageSource(image=named(plain_name(image), bases), has_tests=True)
    elif isinstance(build, str) and not (folder / "Dockerfile").is_file():
        source = ImageSource(image=named(build, bases), has_tests=True)
    else:
        source = _built(build if isinstance(build, Build) else _own_build(folder), bases, installed)
    source.main = main
    source.workdir, source.user = main.workdir or source.workdir, main.user or source.user
    if compose.group is not None:
        built = {name: _built(part, bases, installed) for name, part in compose.builds.items()}
        for name, part in built.items():
            source.left_out += [f"{name}: {line}" for line in part.left_out]
            source.fetches += [f"{name}: {line}" for line in part.fetches]
        images = {name: part.image for name, part in built.items()}
        source.services = _with_images(compose.group, images, source.image, bases)
    return source


def _with_images(group: ServiceGroup, built: Mapping[str, str], main: str, bases: Mapping[str, str]) -> ServiceGroup:
    services = {}
    for name, service in group.services.items():
        image = built.get(name) or (main if service.image == MAIN_IMAGE else named(service.image, bases))
        services[name] = service.model_copy(update={"image": image})
    return group.model_copy(update={"services": services})


def _own_build(folder: Path) -> Build:
    try:
        return Build(folder.resolve(), (folder / "Dockerfile").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CannotRunError("environment/ has no Dockerfile, and task.toml names no docker_image") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{folder / 'Dockerfile'}: {exc}") from exc


def _built(build: Build, bases: Mapping[str, str], installed: bool) -> ImageSource:
    """The ImageSource of a build. Its image is the folder itself if the Dockerfile needs no change, else a changed
    copy."""
    reading = _DockerfileReader(bases, installed, build.args, build.target)
    edited = reading.read(build.dockerfile)
    original = build.context / "Dockerfile"
    unchanged = original.is_file() and original.read_bytes() == edited.encode()
    return ImageSource(
        image=str(build.context if unchanged else _copy(build.context, edited)),
        workdir=reading.workdir,
        user=reading.user,
        left_out=reading.left_out,
        fetches=reading.fetches,
        has_tests="/tests" in build.dockerfile,
    )


class _DockerfileReader:
    """Reads a Dockerfile instruction by instruction, and edits it."""

    def __init__(self, bases: Mapping[str, str], installed: bool, args: Mapping[str, str], target: str) -> None:
        self.bases, self.installed, self.args, self.target = bases, installed, args, target
        self.workdir, self.user = "/", "root"
        self.left_out: list[str] = []
        self.fetches: list[str] = []
        self._variables: dict[str, str] = {}
        self._before: dict[str, str] = {}
        """The variables of ARG lines before the first FROM, which have a value only in FROM lines."""
        self._stages: set[str] = set()

    def read(self, text: str) -> str:
        """The Dockerfile to build instead. Raises CannotRunError if `target` is no stage."""
        text = self._up_to_target(text)
        lines = text.splitlines()
        for edit in reversed(list(self._edits(text))):
            lines[edit.line - 1 : edit.end - 1] = [edit.value]
        return "\n".join(lines) + "\n" if lines != text.splitlines() else text

    def _up_to_target(self, text: str) -> str:
        """The Dockerfile without the stages after the target stage, which cannot use them."""
        if not self.target:
            return text
        stages = [instruction for instruction in parse(text) if instruction.name == "FROM"]
        names = [_stage(instruction) for instruction in stages]
        if self.target.lower() not in names:
            raise CannotRunError(f"a Dockerfile has no stage {self.target}, which the compose file builds")
        after = stages[names.index(self.target.lower()) + 1 :]
        return "\n".join(text.splitlines()[: after[0].line - 1]) + "\n" if after else text

    def _edits(self, text: str) -> list[Instruction]:
        """The instructions to replace. Each has the new text as its `value`."""
        edits = []
        for instruction in parse(text):
            replaced = {"FROM": self._from, "RUN": self._run}.get(instruction.name, self._other)(instruction)
            if replaced is not None:
                edits.append(Instruction(instruction.line, instruction.end, instruction.name, replaced))
        return edits

    def _from(self, instruction: Instruction) -> str | None:
        if not self._stages:
            self._before = dict(self._variables)
        image, *rest = instruction.value.split()
        stage = _stage(instruction)
        self._variables, self.workdir, self.user = {}, "/", "root"
        base = filled(image, self._before)
        local = base if base.lower() in self._stages else named(base, self.bases)
        self._stages |= {stage, str(len(self._stages))}
        return None if local == base else " ".join(["FROM", local, *rest])

    def _other(self, instruction: Instruction) -> str | None:
        if instruction.name == "ARG" and (name := instruction.value.split("=")[0].strip()) in self.args:
            self._variables[name] = self.args[name]
            return f"ARG {name}={shlex.quote(self.args[name])}"
        if instruction.name in ("ARG", "ENV"):
            for name, value in assignments(instruction).items():
                self._variables[name] = filled(value, self._variables)
        elif instruction.name == "WORKDIR":
            self.workdir = posixpath.normpath(posixpath.join(self.workdir, filled(instruction.value, self._variables)))
        elif instruction.name == "USER":
            self.user = filled(instruction.value, self._variables).partition(":")[0].strip() or "root"
        return None

    def _run(self, instruction: Instruction) -> str | None:
        listed = instruction.listed()
        script = " ".join(listed) if listed is not None else instruction.value
        edited = None
        if self.installed and listed is None and not instruction.documents:
            edited = self._without_installs(instruction)
        remaining = script if edited is None else edited.removeprefix("RUN ")
        self.fetches += [f"line {instruction.line}: {program}" for program in shell_words.fetches(remaining)]
        return edited

    def _without_installs(self, instruction: Instruction) -> str | None:
        texts = [text for _, text in shell_words.commands(instruction.value) if text]
        remaining = [text for text in texts if not shell_words.installs(text)]
        if len(remaining) == len(texts):
            return None
        self.left_out += [f"line {instruction.line}: {text}" for text in texts if text not in remaining]
        return "RUN " + "; ".join(f"{{ {text}; }} || true" for text in remaining) if remaining else ""


def _stage(instruction: Instruction) -> str:
    """The name of a FROM's stage in lower case; "" without a name."""
    words = instruction.value.split()
    return words[2].lower() if len(words) > 2 and words[1].lower() == "as" else ""


def _copy(folder: Path, dockerfile: str) -> Path:
    """The folder with a changed Dockerfile, in the cache under the hash of the content."""
    digest = hashlib.sha256(dockerfile.encode())
    for path in sorted(folder.rglob("*")):
        digest.update(f"\0{path.relative_to(folder)}\0{path.lstat().st_mode:o}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "environments"
    cached = cache / digest.hexdigest()[:32]
    if cached.is_dir():
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache, prefix=".draft-"))
    try:
        shutil.copytree(folder, draft / "made", symlinks=True)
        (draft / "made" / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        try:
            (draft / "made").rename(cached)
        except OSError:
            if not cached.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return cached
