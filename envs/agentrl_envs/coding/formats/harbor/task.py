"""One Harbor task directory on its way to a Problem."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl import ConfigError, Task
from agentrl.types import JSON
from agentrl_envs.coding.formats.harbor import shell_words
from agentrl_envs.coding.formats.harbor.config import (
    Environment,
    Healthcheck,
    StepPart,
    TaskToml,
    Verifier,
    read_task_toml,
    resolved,
)
from agentrl_envs.coding.formats.harbor.environment import CannotRunError, Made, made_from, named
from agentrl_envs.coding.formats.harbor.verify import BOX, IN_A_BOX, HarborGrader
from agentrl_envs.coding.problem import Grader, Problem, Solution, Step

ROOT = ("root", "0")
_PLACING_S = 60.0
"""Seconds for what grading does beside running test.sh."""
_STORAGE_MB = 10240
"""The format's own default."""
_NO_NETWORK = re.compile(
    r"\b(curl|wget|uvx?|npx?m?|git|pip3?|apt-get|go|cargo): (?:command )?not found|[Cc]ould not resolve \w+"
    r"|name resolution|[Nn]etwork is unreachable|No matching distribution found|Unable to locate package"
)
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


class Settings(BaseModel):
    """How a Harbor task is run here: the keys of `Task.metadata` beside `format`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: Path
    """The task's folder."""
    base: Mapping[str, str] = Field(default_factory=dict)
    """Image that a task names -> image of this machine."""
    installed: bool = False
    """The images have the packages that Dockerfiles install: leave those commands out."""
    network: Literal["none", "task"] = "none"
    """none: whatever the task asks for, its box has no network. task: a network where the task asks for one."""
    keep: bool = False
    """Leave running what the agent started, for tests that ask a service. It may meddle with them."""
    clean: bool | None = None
    """Grade in a clean second box, with the work folder carried over. None: as the task's verifier mode says."""


def load(task: Task) -> Problem:
    """The problem of a task directory. Raises ConfigError, or CannotRunError if the task is right but not for here."""
    try:
        settings = Settings.model_validate(dict(task.metadata))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(f"task {task.id!r}: metadata {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
    return _Loading(settings).problem()


def tasks_in(folder: Path, **settings: JSON) -> Iterator[Task]:
    """The tasks below a folder, in order of their paths; `settings` go into the metadata of each."""
    for path in sorted(folder.rglob("task.toml")):
        name = path.parent.relative_to(folder).as_posix()
        given: dict[str, JSON] = {"format": "harbor", "path": str(path.parent), **settings}
        yield Task(id=path.parent.name if name == "." else name, metadata=given)


class _Loading:
    """One task directory on its way to a Problem."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.folder = settings, settings.path.resolve()
        self.toml: TaskToml = read_task_toml(self.folder / "task.toml")
        self.environment: Environment = self.toml.environment
        self._check()
        self.made = self._made()
        self.user = self.toml.agent.user or self.made.user
        workdir = self.environment.workdir or self.made.workdir
        self.workdir = "/work" if workdir == "/" else workdir

    def problem(self) -> Problem:
        parts: list[StepPart | None] = [*self.toml.steps] or [None]
        agent = [self._agent_s(part) for part in parts]
        return Problem(
            steps=tuple(self._step(number, part) for number, part in enumerate(parts)),
            image=self.made.image,
            spec=self._spec(),
            total=self.toml.multi_step_reward_strategy,
            agent_s=sum(one for one in agent if one is not None) if None not in agent else None,
        )

    def _check(self) -> None:
        environment = self.environment
        asked = {
            "Windows": environment.os == "windows",
            f"{environment.gpus} GPUs": bool(environment.gpus),
            "a TPU": environment.tpu is not None,
            "MCP servers": bool(environment.mcp_servers),
            "a network with allowed hosts only": self.settings.network == "task"
            and environment.network_mode == "allowlist",
        }
        if wanted := next((what for what, asks in asked.items() if asks), None):
            raise CannotRunError(f"{self.folder.name} asks for {wanted}, which a box here does not have")

    def _made(self) -> Made:
        bases = self.settings.base
        if self.environment.docker_image:
            return Made(image=named(self.environment.docker_image, bases), has_tests=True)
        return made_from(self.folder / "environment", bases=bases, installed=self.settings.installed)

    def _spec(self) -> dict[str, JSON]:
        environment = self.environment
        env = resolved(environment.env, f"{self.folder.name}: [environment] env")
        opened = self.settings.network == "task" and environment.network_mode == "public"
        sizes = {"memory_mb": environment.memory_mb, "cpus": environment.cpus}
        return {
            "disk_mb": environment.storage_mb or _STORAGE_MB,
            "workdir": self.workdir,
            "user": self.user,
            "read_only": False,
            "env": dict(env),
            "network": "open" if opened else "none",
            **{name: size for name, size in sizes.items() if size},
        }

    def _step(self, number: int, part: StepPart | None) -> Step:
        folder = self.folder if part is None else self.folder / "steps" / part.name
        mode = self._mode(part)
        clean = self.settings.clean if self.settings.clean is not None else mode == "separate"
        work = folder / "workdir"
        return Step(
            instruction=_instruction(folder / "instruction.md"),
            grader=self._grader(folder, part, clean),
            gold=self._gold(folder),
            name="" if part is None else part.name,
            files={BOX: "", **({self.workdir: work} if part is not None and work.is_dir() else {})},
            setup=self._setup(number, part, work),
            clean=clean,
            keep=self.settings.keep,
            carry=self._carried(part) if mode == "separate" and clean else None,
            min_score=_threshold(part),
            grade_s=self._grade_s(part) + _PLACING_S,
        )

    def _mode(self, part: StepPart | None) -> Literal["shared", "separate"]:
        verifiers = [self.toml.verifier] if part is None else [part.verifier, self.toml.verifier]
        modes = [one.mode for one in verifiers if one.mode is not None]
        mode: Literal["shared", "separate"] = modes[0] if modes else "shared"
        own = any(one.environment is not None for one in verifiers)
        built = (self.folder / "tests" / "Dockerfile").is_file()
        if mode == "separate" and (own or built):
            raise CannotRunError(f"{self.folder.name}: the verifier has an environment of its own, not supported here")
        if mode == "separate" and any(one.collect for one in verifiers):
            raise CannotRunError(f"{self.folder.name}: [[verifier.collect]] with a separate verifier, not supported")
        return mode

    def _grader(self, folder: Path, part: StepPart | None, clean: bool) -> Grader:
        folders = [self.folder / "tests"] if part is None else [self.folder / "tests", folder / "tests"]
        found = tuple(one for one in folders if one.is_dir())
        if not any((one / "test.sh").is_file() for one in found):
            raise ConfigError(f"{folder} holds no tests/test.sh: its work cannot be graded")
        verifier = self.toml.verifier
        own = part.verifier if part is not None else Verifier()
        known = {**verifier.env, **own.env}
        return HarborGrader(
            tests=found,
            user=own.user or verifier.user,
            env=resolved(known, f"{self.folder.name}: [verifier] env"),
            timeout_s=self._grade_s(part),
            collect=tuple(one for one in (*verifier.collect, *own.collect) if one.service == "main"),
            fresh=not clean and not self.made.has_tests,
            more=not clean and part is not None and part is not self.toml.steps[-1],
        )

    def _gold(self, folder: Path) -> Solution | None:
        """solve.sh as Harbor's oracle runs it: its exit code says nothing."""
        place = next((one for one in (folder, self.folder) if (one / "solution" / "solve.sh").is_file()), None)
        if place is None:
            return None
        env = resolved(self.toml.solution.env, f"{self.folder.name}: [solution] env")
        where = "/solution" if self.user in ROOT else "/tmp/solution"  # another user cannot make a folder in the root
        return Solution(
            files={where: place / "solution"},
            command=f"chmod a+x {where}/solve.sh; {where}/solve.sh",
            env={"DEBIAN_FRONTEND": "noninteractive", **env},
        )

    def _setup(self, number: int, part: StepPart | None, work: Path) -> str:
        """What is run before the agent begins a step, in its own name."""
        lines = [IN_A_BOX, "mkdir -p /logs/agent /logs/artifacts 2>/dev/null || true"]
        if (work / "setup.sh").is_file():
            lines.append("bash ./setup.sh || exit 1")
        checks = [self.environment.healthcheck if number == 0 else None, part.healthcheck if part else None]
        lines += [_health(check) for check in checks if check is not None]
        return "\n".join(lines)

    def _carried(self, part: StepPart | None) -> tuple[str, ...]:
        """The artifacts, relative to the work folder."""
        sources = [one.source for one in (*self.toml.artifacts, *(part.artifacts if part else ()))]
        paths = [posixpath.relpath(posixpath.join(self.workdir, one), self.workdir) for one in sources]
        if not paths or any(path.startswith("..") for path in paths):
            raise CannotRunError(
                f"{self.folder.name}: artifacts outside of {self.workdir} cannot be carried to its separate verifier"
            )
        return tuple(dict.fromkeys(paths))

    def _agent_s(self, part: StepPart | None) -> float | None:
        own = part.agent.timeout_sec if part is not None else None
        return own if own is not None else self.toml.agent.timeout_sec

    def _grade_s(self, part: StepPart | None) -> float:
        own = part.verifier.timeout_sec if part is not None else None
        return own or self.toml.verifier.timeout_sec or 600.0


def _threshold(part: StepPart | None) -> float | None:
    wanted = part.min_reward if part is not None else None
    if isinstance(wanted, dict):
        if set(wanted) != {"reward"}:
            raise CannotRunError(f"step {part.name if part else ''}: min_reward of several names is not supported")
        return wanted["reward"]
    return wanted


def _instruction(path: Path) -> str:
    """The text, without the canary lines at its head, which are not for the agent."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    while lines and _CANARY.fullmatch(lines[0].strip()):
        lines = lines[1:]
        while lines and not lines[0].strip():
            lines = lines[1:]
    return "\n".join(lines)


def _health(check: Healthcheck) -> str:
    """A loop that ends when the check passes, and fails the setup when it has failed too often."""
    command = f"timeout {check.timeout_sec:g} bash -c {shlex.quote(check.command)}"
    begin = f"sleep {check.start_interval_sec:g}; continue"
    return "\n".join(
        [
            f"failed=0; SECONDS=0; until {command}; do",
            f"  if [ $SECONDS -lt {check.start_period_sec:.0f} ]; then {begin}; fi",
            "  failed=$((failed + 1))",
            f"  if [ $failed -ge {check.retries} ]; then echo 'the healthcheck failed' >&2; exit 1; fi",
            f"  sleep {check.interval_sec:g}",
            "done",
        ]
    )


def needs_network(said: str) -> list[str]:
    """The programs that failed for want of a network, by what a build or a script printed."""
    built = re.search(r"The command '(.*?)' returned a non-zero code", said, re.DOTALL)
    if built is not None:
        return shell_words.fetches(built[1].removeprefix("/bin/sh -c "))
    return list(dict.fromkeys(match[1] or match[0] for match in _NO_NETWORK.finditer(said)))
