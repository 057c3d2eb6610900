"""The interface of task formats: problems, graders, and the table of formats."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from agentrl import ConfigError, InfraError, Task
from agentrl._util.loading import load_object
from agentrl.sandbox import FileContent, Sandbox
from agentrl.types import JSON

Files: TypeAlias = Mapping[str, FileContent]
"""Path in the sandbox -> content. A relative path starts in the work folder. A `Path` is a file or a folder of this
machine; a folder's content is merged into the sandbox's folder."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of a step. Raises InfraError unless every number is finite."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Name -> a number for the logs that explains the score, such as the share of passed tests as "tests"."""
    log: str = ""
    """The output of the tests, for people."""

    def __post_init__(self) -> None:
        for name, value in {"score": self.score, **self.parts}.items():
            if not math.isfinite(value):
                raise InfraError(f"grading gave {value} as {name!r}, not a finite number: {self.log[-400:]}")


class TaskGrader(Protocol):
    async def grade(self, box: Sandbox) -> Grade:
        """Copy the tests into `box`, where the agent's work is, run the tests, and read the result.

        Raises InfraError with the tests' output if there is no reliable result. Wrong or hostile work gets a low score
        instead.
        """
        ...


@runtime_checkable
class ApartGrader(Protocol):
    """A grader whose tests run in a separate sandbox, out of reach of the agent's work."""

    async def grade_apart(self, work: Sandbox, tests: Sandbox) -> Grade:
        """Run the work in `work` and judge the work in `tests`, a new sandbox. Raises as `TaskGrader.grade` does."""
        ...


@dataclass(frozen=True, slots=True)
class Solution:
    """The task's solution, as an oracle applies the solution: place `files`, then run `command` in the work folder."""

    files: Files = field(default_factory=dict)
    command: str = ""
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnSandbox:
    """A separate sandbox for tests, possibly unlike the agent's. Only `paths` of the agent's work are carried there."""

    paths: tuple[str, ...]
    """Absolute paths of files and folders to copy. Missing paths are left out."""
    image: str = ""
    spec: Mapping[str, JSON] = field(default_factory=dict)
    """The fields of `SandboxSpec` in which this sandbox differs from the agent's sandbox."""
    collect: Callable[[Sandbox], Awaitable[None]] | None = None
    """A function that is called with the agent's sandbox before the paths are copied."""


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction, and the grader of the work. Most problems have a single step."""

    instruction: str
    grader: TaskGrader | ApartGrader
    gold: Solution | None = None
    """The solution. None if the task has no solution, so that no oracle can show that the task can be solved."""
    name: str = ""
    files: Files = field(default_factory=dict)
    """Files that are written before the agent begins this step, as the sandbox's user."""
    setup: str = ""
    """A command that runs after `files` were written, in the work folder, as the sandbox's user."""
    clean: bool = True
    """Whether to grade in a clean second sandbox, to which the agent's files are copied. False: grade in the agent's
    sandbox, after the agent's processes are killed. False suits tests that check more than files."""
    own: OwnSandbox | None = None
    """A separate sandbox for grading. If set, `clean` is ignored."""
    keep: bool = False
    """Whether the agent's processes stay running during grading in the agent's sandbox. They may tamper with the
    tests."""
    carry: tuple[str, ...] | None = None
    """The files and folders of the agent to copy to the clean sandbox. None: every changed or removed file of the work
    folder, except `.git`. Only copied files can influence the tests."""
    without: Callable[[str], bool] | None = None
    """A function for `carry` of None: whether a path, relative to the work folder, is not copied, so that its original
    content stays. It protects files that configure the tests or belong to the tests."""
    min_score: float | None = None
    """If a step scores less, the problem ends, and later steps score 0."""
    grade_s: float = 600.0
    """The time limit for grading, in seconds."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A task, ready to be played: the sandbox and the steps."""

    steps: tuple[Step, ...]
    image: str = ""
    """The image of the sandbox; empty: the image in the environment's configuration."""
    spec: Mapping[str, JSON] = field(default_factory=dict)
    """The fields of `SandboxSpec` that this problem changes: workdir, memory_mb, user, network, ..."""
    total: Literal["mean", "final"] = "mean"
    """How the reward follows from the scores of several steps. mean: their mean. final: the score of the last step."""
    agent_s: float | None = None
    """The time limit of the agent for all steps, in seconds. None: as in the environment's configuration."""
    activate: str = ""
    """Bash commands that enter the environment of the tests, such as conda's. The agent's shell or program begins with
    these commands. Their output and exit code are ignored."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigError("a Problem needs at least one Step")


class Loader(Protocol):
    def __call__(self, task: Task, /) -> Problem:
        """The problem of a task. Blocks. Raises ConfigError with the task and the mistake."""
        ...


FORMATS: Mapping[str, str] = {
    "function": "agentrl_envs.coding.formats.functions:load_function",
    "folder": "agentrl_envs.coding.formats.functions:load_folder",
    "harbor": "agentrl_envs.coding.formats.harbor:load",
    "swebench": "agentrl_envs.coding.formats.swebench:load",
}
"""Name in a task's metadata -> Loader. Any other name is the path of a user's Loader."""


def load_problem(task: Task) -> Problem:
    """The problem of `task.metadata["format"]` and the format's metadata. Raises ConfigError."""
    name = task.metadata.get("format")
    if not isinstance(name, str) or (name not in FORMATS and ":" not in name):
        formats = ", ".join(FORMATS)
        raise ConfigError(f'task {task.id!r}: metadata["format"] is {name!r}; it must be {formats} or file.py:loader')
    problem = load_object(FORMATS.get(name, name))(task)
    if not isinstance(problem, Problem):
        raise ConfigError(f"task {task.id!r}: {name} returned {type(problem).__name__}, not a Problem")
    return problem
