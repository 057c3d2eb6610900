"""What a task format gives the coding environment: problems, how they are graded, and the table of formats."""

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
    """The result of grading one step. Raises InfraError unless every number is finite."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named shares of the score, for the logs: the passed share of the tests as "tests", for example."""
    log: str = ""
    """What the tests wrote, for people."""

    def __post_init__(self) -> None:
        for name, value in {"score": self.score, **self.parts}.items():
            if not math.isfinite(value):
                raise InfraError(f"grading gave {value} as {name!r}, not a finite number: {self.log[-400:]}")


class TaskGrader(Protocol):
    async def grade(self, box: Sandbox) -> Grade:
        """Place the tests, run them and read their result. The agent's work is in `box` already.

        Raises InfraError with the tests' output if they gave no result that can be trusted. Wrong or hostile work gets
        a low score instead.
        """
        ...


@runtime_checkable
class ApartGrader(Protocol):
    """A grader whose tests run in a sandbox that holds nothing of the agent's, so that the work cannot reach them."""

    async def grade_apart(self, work: Sandbox, tests: Sandbox) -> Grade:
        """Run the work in one sandbox and judge it in the other, which is new. Raises as `TaskGrader.grade` does."""
        ...


@dataclass(frozen=True, slots=True)
class Solution:
    """The task's own solution, as an oracle applies it: place `files`, then run `command` in the work folder."""

    files: Files = field(default_factory=dict)
    command: str = ""
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnSandbox:
    """The tests' own sandbox, which need not be like the agent's: it gets only `paths` of the agent's work."""

    paths: tuple[str, ...]
    """Absolute paths of files and folders. What is missing is left out."""
    image: str = ""
    spec: Mapping[str, JSON] = field(default_factory=dict)
    """Fields of `SandboxSpec` in which it differs from the agent's."""
    collect: Callable[[Sandbox], Awaitable[None]] | None = None
    """Called with the agent's sandbox before the paths are read."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction and how the work on it is graded. Most problems have one step."""

    instruction: str
    grader: TaskGrader | ApartGrader
    gold: Solution | None = None
    """None: the task comes without a solution, so no oracle can show that it can be solved."""
    name: str = ""
    files: Files = field(default_factory=dict)
    """Placed before the agent begins this step, as the sandbox's own user."""
    setup: str = ""
    """A command that is run after `files` were placed, in the work folder, as the sandbox's own user."""
    clean: bool = True
    """Grade in a clean second sandbox, into which the agent's work is carried. False: in the agent's own, after its
    processes were killed; for tests that look at more than files."""
    own: OwnSandbox | None = None
    """Grade in this sandbox, whatever `clean` is."""
    keep: bool = False
    """When grading in the agent's own sandbox: leave its processes running. They may meddle with the tests."""
    carry: tuple[str, ...] | None = None
    """Files and folders of the agent's work that are carried over. None: every file of the work folder that was changed
    or removed, except `.git`. Only what is named can influence the tests."""
    without: Callable[[str], bool] | None = None
    """If every changed file is carried: paths, relative to the work folder, for which this is true keep their original
    content. For files that configure the tests or belong to them.
    """
    min_score: float | None = None
    """A lower score ends the problem here: its later steps score 0."""
    grade_s: float = 600.0
    """Seconds that grading may take."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One task, ready to be played: what the sandbox is, and the steps."""

    steps: tuple[Step, ...]
    image: str = ""
    """The sandbox's image; empty: the environment's own."""
    spec: Mapping[str, JSON] = field(default_factory=dict)
    """Fields of `SandboxSpec` that this problem changes: workdir, memory_mb, user, network, ..."""
    total: Literal["mean", "final"] = "mean"
    """How the scores of several steps make the reward."""
    agent_s: float | None = None
    """Seconds that the agent has in all. None: as in the environment's configuration."""
    activate: str = ""
    """Commands of bash that enter the environment in which the tests run, such as conda's. The agent's shell, or the
    program that is the agent, begins with them. Their output and their exit code are ignored."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigError("a Problem needs at least one Step")


class Loader(Protocol):
    def __call__(self, task: Task, /) -> Problem:
        """The problem of a task. It may block. Raises ConfigError naming the task and what is wrong with it."""
        ...


FORMATS: Mapping[str, str] = {
    "function": "agentrl_envs.coding.formats.functions:load_function",
    "folder": "agentrl_envs.coding.formats.functions:load_folder",
    "harbor": "agentrl_envs.coding.formats.harbor:load",
    "swebench": "agentrl_envs.coding.formats.swebench:load",
}
"""Name in a task's metadata -> its Loader. A name that is not here is the path of a Loader of your own."""


def load_problem(task: Task) -> Problem:
    """The problem that `task.metadata["format"]` and the format's own metadata describe. Raises ConfigError."""
    name = task.metadata.get("format")
    if not isinstance(name, str) or (name not in FORMATS and ":" not in name):
        formats = ", ".join(FORMATS)
        raise ConfigError(f'task {task.id!r}: metadata["format"] is {name!r}; it must be {formats} or file.py:loader')
    problem = load_object(FORMATS.get(name, name))(task)
    if not isinstance(problem, Problem):
        raise ConfigError(f"task {task.id!r}: {name} returned {type(problem).__name__}, not a Problem")
    return problem
