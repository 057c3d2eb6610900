"""Turn a Harbor task directory into a Problem."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl import ConfigError, Task
from agentrl._util.config_errors import problems
from agentrl.sandbox import Sandbox
from agentrl.types import JSON
from agentrl_envs.coding.formats.harbor.compose_rules import CannotRunError
from agentrl_envs.coding.formats.harbor.config import (
    Agent,
    Collect,
    Environment,
    Healthcheck,
    StepPart,
    TaskToml,
    Verifier,
    read_task_toml,
    resolved,
)
from agentrl_envs.coding.formats.harbor.environment import ImageSource, made_from
from agentrl_envs.coding.formats.harbor.verify import BOX, IN_A_BOX, TESTS, VERIFIER, HarborGrader
from agentrl_envs.coding.formats.surroundings import NO_MONITOR, NO_USER_SITE, NOTE_NAMES, SETTINGS
from agentrl_envs.coding.problem import OwnSandbox, Problem, Solution, Step, TaskGrader
from agentrl_sandbox.services import HealthCheck
from agentrl_sandbox.spec import SandboxSpec

ROOT = ("root", "0")
_PLACING_S = 60.0
"""Seconds that grading may take in addition to the time limit of test.sh."""
_STORAGE_MB = 10240
"""The default of the format, in MiB."""
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


class HarborSettings(BaseModel):
    """How a Harbor task is run here: the keys of `Task.metadata` beside `format`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: Path
    """The task's folder."""
    base: Mapping[str, str] = Field(default_factory=dict)
    """The task's image -> an image of this machine."""
    installed: bool = False
    """Whether the images have the packages that Dockerfiles install, so that the install commands are left out."""
    network: Literal["none", "task"] = "none"
    """The network of the sandbox. none: no network, even if the task asks for a network. task: as the task asks,
    possibly with a list of allowed hosts."""
    keep: bool = False
    """Whether the agent's processes stay running, for tests that query a service. These processes could tamper with the
    tests."""
    clean: bool = False
    """Whether a verifier that shares the agent's sandbox runs in a clean second sandbox with a copy of the work folder.
    This stops most tricks of an agent with root rights, and suits tests that read only the work folder."""


def load(task: Task) -> Problem:
    """The problem of a task directory. Raises ConfigError, or CannotRunError if the task is valid but cannot be run
    here."""
    try:
        settings = HarborSettings.model_validate(dict(task.metadata))
    except ValidationError as exc:
        raise ConfigError(f"task {task.id!r}: metadata: {problems(exc, HarborSettings)}") from exc
    return _Loading(settings).problem()


def tasks_in(folder: Path, **settings: JSON) -> Iterator[Task]:
    """The tasks below a folder, in order of their paths; `settings` are added to the metadata of each task."""
    for path in sorted(folder.rglob("task.toml")):
        name = path.parent.relative_to(folder).as_posix()
        metadata: dict[str, JSON] = {"format": "harbor", "path": str(path.parent), **settings}
        yield Task(id=path.parent.name if name == "." else name, metadata=metadata)


class _Loading:
    """Turns a task directory into a Problem."""

    def __init__(self, settings: HarborSettings) -> None:
        self.settings, self.folder = settings, settings.path.resolve()
        self.toml: TaskToml = read_task_toml(self.folder / "task.toml")
        self.environment: Environment = self.toml.environment
        self._check(self.environment)
        self.source = self._image_source(self.environment, self.folder / "environment")
        self._check_hooks()
        self.user = self.toml.agent.user or self.source.user
        workdir = self.environment.workdir or self.source.workdir
        self.workdir = "/work" if workdir == "/" else workdir

    def problem(self) -> Problem:
        parts: list[StepPart | None] = [*self.toml.steps] or [None]
        agent = [self._agent_s(part) for part in parts]
        return Problem(
            steps=tuple(self._step(number, part) for number, part in enumerate(parts)),
            image=self.source.image,
            spec=self._spec(self.environment, self.source, self.workdir, self.user, self.toml.agent),
            total=self.toml.multi_step_reward_strategy,
            agent_s=sum(seconds for seconds in agent if seconds is not None) if None not in agent else None,
        )

    def _check(self, environment: Environment) -> None:
        requests = {
            "Windows": environment.os == "windows",
            f"{environment.gpus} GPUs": bool(environment.gpus),
            "a TPU": environment.tpu is not None,
            "MCP servers": bool(environment.mcp_servers),
        }
        if unsupported := next((name for name, asks in requests.items() if asks), None):
            raise CannotRunError(f"{self.folder.name} asks for {unsupported}, which a box here does not have")

    def _image_source(self, environment: Environment, folder: Path) -> ImageSource:
        limits = {
            "CPUS": f"{environment.cpus:g}" if environment.cpus else "",
            "MEMORY": f"{environment.memory_mb}M" if environment.memory_mb else "",
        }
        return made_from(
            folder,
            bases=self.settings.base,
            installed=self.settings.installed,
            image=environment.docker_image or "",
            variables={**self._env(environment), **limits},
            ready_s=environment.build_timeout_sec,
        )

    def _env(self, environment: Environment) -> dict[str, str]:
        return resolved(environment.env, f"{self.folder.name}: [environment] env")

    def _check_hooks(self) -> None:
        """Raises CannotRunError for a hook in another service, because hooks run only in main."""
        verifiers = [self.toml.verifier, *(step.verifier for step in self.toml.steps)]
        if other := next(
            (hook.service for verifier in verifiers for hook in verifier.collect if hook.service != "main"), None
        ):
            raise CannotRunError(f"{self.folder.name}: a collect hook runs in the service {other}, not supported")

    def _spec(
        self, environment: Environment, source: ImageSource, workdir: str, user: str, phase: Agent | Verifier
    ) -> dict[str, JSON]:
        main, services = source.main, source.services
        sizes = {
            "memory_mb": main.memory_mb or environment.memory_mb,
            "cpus": main.cpus or environment.cpus,
            "pids": main.pids,
        }
        return {
            "disk_mb": environment.storage_mb or _STORAGE_MB,
            "workdir": workdir,
            "user": user,
            "read_only": False,
            "env": {**main.env, **self._env(environment)},
            "services": services.model_dump(mode="json") if services is not None else None,
            "network": self._network(environment, phase),
            **{name: size for name, size in sizes.items() if size},
        }

    def _network(self, environment: Environment, phase: Agent | Verifier) -> JSON:
        """The value for `SandboxSpec.network`. A sandbox never changes its network: it is the network of the agent, or
        of a verifier with a separate sandbox."""
        if self.settings.network == "none":
            return "none"
        mode, hosts = environment.network_mode, environment.allowed_hosts
        if phase.network_mode is not None:
            mode, hosts = phase.network_mode, phase.allowed_hosts
        others = [part.name for part in self.toml.steps if part.agent.network_mode not in (None, mode)]
        if others and phase is self.toml.agent:
            raise CannotRunError(f"{self.folder.name}: the step {others[0]} asks for another network than the first")
        if mode == "no-network" or (mode == "allowlist" and not hosts):
            return "none"
        if mode == "public":
            return "open"
        try:
            return list(SandboxSpec(network=tuple(hosts or ())).hosts)
        except ValidationError as exc:
            raise CannotRunError(f"{self.folder.name}: allowed_hosts: {problems(exc, SandboxSpec)}") from exc

    def _step(self, number: int, part: StepPart | None) -> Step:
        folder = self.folder if part is None else self.folder / "steps" / part.name
        separate = self._own(folder, part) if self._mode(part) == "separate" else None
        clean = separate is not None or self.settings.clean
        work = folder / "workdir"
        return Step(
            instruction=_instruction(folder / "instruction.md"),
            grader=self._grader(folder, part, clean, separate is not None),
            gold=self._gold(folder),
            name="" if part is None else part.name,
            files={BOX: "", **({self.workdir: work} if part is not None and work.is_dir() else {})},
            setup=self._setup(number, part, work),
            clean=clean,
            own=separate,
            without=_obeyed,
            keep=self.settings.keep,
            min_score=_threshold(part),
            grade_s=self._grade_s(part) + _PLACING_S,
        )

    def _mode(self, part: StepPart | None) -> Literal["shared", "separate"]:
        modes = [verifier.mode for verifier in self._verifiers(part) if verifier.mode is not None]
        return modes[0] if modes else "shared"

    def _verifiers(self, part: StepPart | None) -> list[Verifier]:
        """The verifier sections that apply to a step: the step's section before the task's section."""
        return [self.toml.verifier] if part is None else [part.verifier, self.toml.verifier]

    def _own(self, folder: Path, part: StepPart | None) -> OwnSandbox:
        """The separate sandbox of a verifier. Its image is the configured image, or is built in tests/, or is the
        agent's image.

        The artifacts, and the files that hooks collect in the agent's sandbox, are copied into this sandbox.
        """
        tests = [parent / "tests" for parent in (folder, self.folder)]
        build = next((path for path in tests if (path / "Dockerfile").is_file()), None)
        environment = self._verifier_environment(part) or (self.environment if build is None else Environment())
        self._check(environment)
        source = self.source
        if build is not None or environment.docker_image:
            source = self._image_source(environment, build or folder)
        workdir = environment.workdir or source.workdir
        spec = self._spec(environment, source, "/work" if workdir == "/" else workdir, source.user, self.toml.verifier)
        hooks = tuple(hook for verifier in reversed(self._verifiers(part)) for hook in verifier.collect)
        return OwnSandbox(self._artifacts(part), source.image, spec, _Collecting(hooks) if hooks else None)

    def _verifier_environment(self, part: StepPart | None) -> Environment | None:
        environments = (verifier.environment for verifier in self._verifiers(part))
        return next((environment for environment in environments if environment is not None), None)

    def _artifacts(self, part: StepPart | None) -> tuple[str, ...]:
        """Absolute paths of the declared artifacts, and of the artifacts folder."""
        declared = [*self.toml.artifacts, *(part.artifacts if part else ())]
        if other := next((artifact for artifact in declared if artifact.service not in (None, "main")), None):
            raise CannotRunError(f"{self.folder.name}: an artifact of the service {other.service}, not supported")
        paths = [posixpath.normpath(posixpath.join(self.workdir, artifact.source)) for artifact in declared]
        for path in paths:
            if any(f"{place}/".startswith(f"{path.rstrip('/')}/") for place in (TESTS, VERIFIER)) or path == "/":
                raise CannotRunError(f"{self.folder.name}: the artifact {path} would replace the verifier's own files")
        return tuple(dict.fromkeys((*paths, "/logs/artifacts")))

    def _grader(self, folder: Path, part: StepPart | None, clean: bool, apart: bool) -> TaskGrader:
        verifier = self.toml.verifier
        step = part.verifier if part is not None else Verifier()
        hooks = () if apart else (*verifier.collect, *step.collect)
        return HarborGrader(
            tests=self._tests(folder),
            user=step.user or verifier.user,
            env=resolved({**verifier.env, **step.env}, f"{self.folder.name}: [verifier] env"),
            timeout_s=self._grade_s(part),
            collect=tuple(hook for hook in hooks if hook.service == "main"),
            workdir=self.workdir,
            judged=self._artifacts(part) if apart else (),
            under=NO_MONITOR + (NO_USER_SITE if self.user in ROOT else ""),
            fresh=not clean and not self.source.has_tests,
            more=not clean and part is not None and part is not self.toml.steps[-1],
        )

    def _tests(self, folder: Path) -> tuple[Path, ...]:
        """The folders with the tests of a step: the task's folder first. Raises ConfigError without a test.sh."""
        folders = dict.fromkeys((self.folder / "tests", folder / "tests"))
        existing = tuple(path for path in folders if path.is_dir())
        if not any((path / "test.sh").is_file() for path in existing):
            raise ConfigError(f"{folder} holds no tests/test.sh: its work cannot be graded")
        return existing

    def _gold(self, folder: Path) -> Solution | None:
        """The solution: solve.sh, run as by Harbor's oracle, which ignores the exit code."""
        place = next((parent for parent in (folder, self.folder) if (parent / "solution" / "solve.sh").is_file()), None)
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
        """The commands to run before the agent begins a step, as the agent's user."""
        lines = [
            IN_A_BOX,
            *([NOTE_NAMES] if number == 0 else []),
            "mkdir -p /logs/agent /logs/artifacts 2>/dev/null || true",
        ]
        if (work / "setup.sh").is_file():
            lines.append("bash ./setup.sh || exit 1")
        if number == 0:
            lines += [f"mkdir -p {shlex.quote(path)} 2>/dev/null || true" for path in self.source.main.folders]
            lines += [_running(self.source.main.command)] if self.source.main.command else []
            lines += [_health(_as_own(self.source.main.health))] if self.source.main.health is not None else []
        checks = [self.environment.healthcheck if number == 0 else None, part.healthcheck if part else None]
        lines += [_health(check) for check in checks if check is not None]
        return "\n".join(lines)

    def _agent_s(self, part: StepPart | None) -> float | None:
        seconds = part.agent.timeout_sec if part is not None else None
        return seconds if seconds is not None else self.toml.agent.timeout_sec

    def _grade_s(self, part: StepPart | None) -> float:
        seconds = part.verifier.timeout_sec if part is not None else None
        return seconds or self.toml.verifier.timeout_sec or 600.0


@dataclass(frozen=True, slots=True)
class _Collecting:
    """Runs the task's hooks, which gather files for the verifier in the agent's sandbox."""

    hooks: tuple[Collect, ...]

    async def __call__(self, box: Sandbox) -> None:
        for hook in self.hooks:  # best effort, as in Harbor: what it collects is missed by the tests if it failed
            await box.exec(hook.command, user=hook.user, timeout=hook.timeout_sec)


def _obeyed(path: str) -> bool:
    """Whether a path is a settings file that programs read in any folder. Such files of the agent are not copied to a
    clean sandbox."""
    return any(fnmatch(part, pattern) for part in path.split("/") for pattern in SETTINGS)


def _threshold(part: StepPart | None) -> float | None:
    threshold = part.min_reward if part is not None else None
    if isinstance(threshold, dict):
        if set(threshold) != {"reward"}:
            raise CannotRunError(f"step {part.name if part else ''}: min_reward of several names is not supported")
        return threshold["reward"]
    return threshold


def _instruction(path: Path) -> str:
    """The text of an instruction, without canary lines at the beginning, which are not meant for the agent."""
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
    """A shell loop that ends when the health check passes, and fails the setup after too many failures."""
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


def _running(command: str) -> str:
    """A shell line that starts the command of the compose file in parallel with the agent."""
    return f"nohup setsid {command} > /tmp/.main-service.log 2>&1 < /dev/null &"


def _as_own(check: HealthCheck) -> Healthcheck:
    """A health check of a compose file, in the form of task.toml."""
    kind, *rest = check.test or ("NONE",)
    command = {"CMD": shlex.join(rest), "CMD-SHELL": " ".join(rest), "NONE": "true"}.get(kind, shlex.join(check.test))
    return Healthcheck(
        command=command,
        interval_sec=check.interval_s,
        timeout_sec=check.timeout_s,
        start_period_sec=check.start_period_s,
        start_interval_sec=min(check.interval_s, 5.0),
        retries=check.retries,
    )
