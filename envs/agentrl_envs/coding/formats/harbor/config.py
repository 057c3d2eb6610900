"""Read task.toml of a Harbor task: schemas 1.0 to 1.4, and older spellings in published sets of tasks.

Unknown keys are ignored, as in Harbor.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from agentrl import ConfigError
from agentrl._util.config_errors import problems

NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
User: TypeAlias = Annotated[str | None, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]
"""A user's name or number. None means the image's user, which is root by default."""

_log = logging.getLogger("agentrl")
_warned: set[str] = set()
"""The variables for which a warning was logged. All tasks of a set name the same variables, so each is logged once."""

_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])B?", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_STEP_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]+")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Healthcheck(_Part):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Environment(_Part):
    docker_image: str | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(lambda value: str(value).lower())] = "linux"
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    workdir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, data: Any) -> Any:
        """Accept the keys of schema 1.0 and before: memory = "2G", storage = "10G" and allow_internet = false."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = data.pop(old, None)
            if isinstance(size, str):
                megabytes = _megabytes(size)
                if data.setdefault(new, megabytes) != megabytes:
                    raise ValueError(f"{old} = {size!r} and {new} = {data[new]!r} differ: keep {new}")
        internet = data.pop("allow_internet", None)
        if internet is not None and "network_mode" not in data and "allowed_hosts" not in data:
            data["network_mode"] = "public" if internet else "no-network"
        return data

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        return self


class Agent(_Part):
    timeout_sec: float | None = None
    user: User = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Collect(_Part):
    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: User = None


class Verifier(_Part):
    timeout_sec: float | None = None
    """The time limit in seconds. None: the time limit of the task, which is 600 by default."""
    env: dict[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = Field(default_factory=list)
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _one_mode(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" and [verifier.environment] exclude each other: drop one')
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """Where the verifier runs: in the agent's sandbox or in a separate sandbox. None if this section does not
        tell."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class Artifact(_Part):
    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_path(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data


def _step_name(name: str) -> str:
    if not _STEP_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a step's folder")
    return name


class StepPart(_Part):
    name: Annotated[str, BeforeValidator(_step_name)]
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[Artifact] = Field(default_factory=list)


class SolutionPart(_Part):
    env: dict[str, str] = Field(default_factory=dict)


class TaskToml(_Part):
    """The parts of a task.toml that define how a task runs and is graded."""

    schema_version: str = "1.0"
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Environment = Field(default_factory=Environment)
    solution: SolutionPart = Field(default_factory=SolutionPart)
    steps: list[StepPart] = Field(default_factory=list)
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    artifacts: list[Artifact] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _older_version(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if "version" in data:
            data.setdefault("schema_version", str(data.pop("version")))
        return data

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [step.name.casefold() for step in self.steps]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two steps are named {twice[0]!r}")
        return self


def read_task_toml(path: Path) -> TaskToml:
    """Read a task.toml. Raises ConfigError naming the file, the key and the mistake."""
    try:
        return TaskToml.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} holds no task.toml: it is not a Harbor task") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except ValidationError as exc:
        raise ConfigError(f"{path}: {problems(exc, TaskToml)}") from exc


def resolved(env: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` with `${VAR}` and `${VAR:-default}` filled in from this process's environment.

    Only a value that is entirely such a form is filled in. An unset variable without a default is left out with a
    warning, because a set of tasks may name keys that few tests need.
    """
    variables = {}
    for key, value in env.items():
        match = _VARIABLE.fullmatch(value)
        setting = os.environ.get(match[1], match[2]) if match else value
        if setting is not None:
            variables[key] = setting
        elif match is not None and match[1] not in _warned:
            _warned.add(match[1])
            _log.warning(
                "%s: %s is left out, as %s is not set here; what needs it fails: set it, or write ${%s:-default}",
                *(where, key, match[1], match[1]),
            )
    return variables


def _megabytes(size: str) -> int:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f"{size!r} is not a size; write 2G, 512M or 100K")
    return int(float(match[1]) * _MEGABYTES[match[2].upper()])
