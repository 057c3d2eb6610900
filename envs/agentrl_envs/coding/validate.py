"""Find out, without a model, which coding tasks are broken: an idle play must score 0, the task's solution 1.

Each of the two is played twice, in a new sandbox, by the same code as an episode of CodingEnv.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from agentrl import ConfigError, InfraError, Task
from agentrl._util.concurrency import gather
from agentrl.check.verdicts import TIMES, Play, Verdict, judge
from agentrl.errors import one_line
from agentrl.rollout.data.tasks import load_tasks
from agentrl.sandbox import Sandbox, SandboxKilledError
from agentrl.types import JSON
from agentrl_envs.coding.formats import harbor
from agentrl_envs.coding.formats.starting import needs_network
from agentrl_envs.coding.grading import grade
from agentrl_envs.coding.images import images_of, missing_lines
from agentrl_envs.coding.problem import Grade, Problem, Step, load_problem
from agentrl_envs.coding.work import prepare, solve
from agentrl_sandbox.backend import Backend, open_backend
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

log = logging.getLogger("agentrl")


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """The verdict on a task."""

    id: str
    verdict: Verdict
    reason: str = ""
    noop: Sequence[float | None] = ()
    """The scores of the idle plays. None stands for a play that failed."""
    oracle: Sequence[float | None] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """How tasks are validated."""

    backend: str = "auto"
    base: Mapping[str, str] = field(default_factory=dict)
    """The task's image -> an image of this machine."""
    installed: bool = False
    """Whether the images have the packages that Dockerfiles install."""
    keep: bool = False
    """Whether the solution's processes stay running during the tests."""
    concurrency: int = 2
    """The number of tasks that are validated at the same time."""
    deadline: float = 600.0
    """The time limit of a play with its grading, in seconds. A task may have a shorter limit."""


def find_tasks(place: Path, settings: ValidationSettings) -> list[Task]:
    """The tasks of a data set (JSONL), of a Harbor task or a folder of them, or of function folders.

    Raises ConfigError if there is no task.
    """
    if place.is_file():
        return [_settled(task, settings) for task in load_tasks(place, split="eval")]
    if not place.is_dir():
        raise ConfigError(f"{place}: no such file or folder; give a JSONL file of tasks, or a folder of them")
    tasks = list(harbor.tasks_in(place, **_given(settings)))
    tasks = tasks or list(_function_folders(place))
    if not tasks:
        raise ConfigError(f"{place} holds no task: neither a task.toml, nor a folder with *_test.py or test_*.py")
    return tasks


async def validate(
    tasks: Sequence[Task],
    settings: ValidationSettings,
    *,
    on_finding: Callable[[TaskFinding], None] = lambda finding: None,
) -> list[TaskFinding]:
    """A finding for each task, in order. Raises SandboxError if the back end cannot work here at all.

    The number of missing images is logged before the first play.
    """
    images = await asyncio.to_thread(images_of, tasks, SandboxSpec())
    for line in await missing_lines(settings.backend, images):
        log.warning("%s", line)
    at_a_time = asyncio.Semaphore(settings.concurrency)

    async def check(task: Task, backend: Backend, pool: SandboxPool) -> TaskFinding:
        async with at_a_time:
            result = await _Validation(task, backend, pool, settings).finding()
        on_finding(result)
        return result

    async with (
        open_backend(settings.backend) as backend,
        SandboxPool(backend, None, size=settings.concurrency, grade=settings.concurrency, warm=0) as pool,
    ):
        return await gather(check(task, backend, pool) for task in tasks)


def counts(findings: Iterable[TaskFinding]) -> dict[str, int]:
    """How many tasks got each verdict, the most frequent first."""
    return dict(Counter(finding.verdict for finding in findings).most_common())


class _Validation:
    """The validation of a task."""

    def __init__(self, task: Task, backend: Backend, pool: SandboxPool, settings: ValidationSettings) -> None:
        self.task, self.backend, self.pool, self.settings = task, backend, pool, settings

    async def finding(self) -> TaskFinding:
        began = time.monotonic()
        try:
            self.problem: Problem = await asyncio.to_thread(load_problem, self.task)
            self.spec = _spec(self.problem)
            async with asyncio.timeout(max(self.settings.deadline, 1800)):
                for image in self.spec.images:
                    await self.backend.prepare(image)
            self.backend.sandbox(self.spec)
        except harbor.CannotRunError as exc:
            return self._finding(began, "cannot run here", str(exc))
        except (InfraError, TimeoutError) as exc:
            return self._finding(began, *_unbuilt(one_line(exc)))
        except ConfigError as exc:
            return self._finding(began, "error", str(exc))
        noop = [await self._play(oracle=False) for _ in range(TIMES)]
        solvable = all(step.gold is not None for step in self.problem.steps)
        oracle = [await self._play(oracle=True) for _ in range(TIMES)] if solvable else []
        verdict, reason = judge(noop, oracle)
        if verdict in ("oracle failed", "error") and (fetched := self._fetched(oracle)):
            verdict, reason = "cannot run here", f"it needs a network ({', '.join(fetched)}); {reason}"
        return self._finding(began, verdict, reason, noop, oracle)

    def _finding(
        self, began: float, verdict: Verdict, reason: str, noop: Sequence[Play] = (), oracle: Sequence[Play] = ()
    ) -> TaskFinding:
        nothing, solved = ([play.score for play in plays] for plays in (noop, oracle))
        seconds = round(time.monotonic() - began, 1)
        return TaskFinding(self.task.id, verdict, " ".join(reason.split()), nothing, solved, seconds)

    async def _play(self, *, oracle: bool) -> Play:
        """Play all steps once."""
        output: list[str] = []
        try:
            async with asyncio.timeout(self.settings.deadline), self.pool.acquire(self.spec) as box:
                grades = await self._grades(box, output, oracle=oracle)
        except TimeoutError as exc:
            return Play(None, f"it took longer than {self.settings.deadline:g} s: {one_line(exc)}", late=True)
        except SandboxKilledError as exc:
            return Play(0.0, f"the sandbox was ended: {exc}")
        except (InfraError, OSError) as exc:
            return Play(None, one_line(exc), late="did not end within" in str(exc), log="".join(output))
        missing = [0.0] * (len(self.problem.steps) - len(grades))
        scores = [grade.score for grade in grades] + missing
        total = scores[-1] if self.problem.total == "final" else fmean(scores)
        return Play(total, log=f"{grades[-1].log}\n{''.join(output)}")

    async def _grades(self, box: Sandbox, output: list[str], *, oracle: bool) -> list[Grade]:
        """The grades of the steps. The solution's output is added to `output`."""
        grades: list[Grade] = []
        for number, step in enumerate(self.problem.steps, 1):
            await prepare(box, step)
            if oracle and step.gold is not None:
                limit = min(self.problem.agent_s or self.settings.deadline, self.settings.deadline)
                solved = await solve(box, step.gold, timeout=limit)
                output += [solved.stdout[-2000:], solved.stderr[-2000:]]
            grades.append(await grade(box, self.problem.steps[:number], pool=self.pool, spec=self.spec))
            if _ends(step, grades[-1]):
                break
        return grades

    def _fetched(self, plays: Sequence[Play]) -> list[str]:
        """The names of programs that failed in a play because the sandbox has no network."""
        failed = [play for play in plays if play.score != 1.0]
        if self.spec.network == "open" or not failed:
            return []
        return needs_network(f"{failed[0].error}\n{failed[0].log}")


def _unbuilt(message: str) -> tuple[Verdict, str]:
    """The verdict and the reason if the image could not be built: an error of the task, or no network for the build."""
    if "COPY failed" in message or "ADD failed" in message:
        return "error", message
    fetched = needs_network(message)
    return "cannot run here", f"its image needs a network ({', '.join(fetched)}); {message}" if fetched else message


def _ends(step: Step, grade: Grade) -> bool:
    return step.min_score is not None and grade.score < step.min_score


def _spec(problem: Problem) -> SandboxSpec:
    image = {"image": problem.image} if problem.image else {}
    return SandboxSpec.model_validate({**dict(problem.spec), **image})


def _settled(task: Task, settings: ValidationSettings) -> Task:
    """The task of a row. `settings` are added to the metadata of a Harbor task."""
    if task.metadata.get("format") != "harbor":
        return task
    return replace(task, metadata={**_given(settings), **task.metadata})


def _given(settings: ValidationSettings) -> dict[str, JSON]:
    return {"base": dict(settings.base), "installed": settings.installed, "keep": settings.keep}


def _function_folders(place: Path) -> Iterable[Task]:
    tests = {file.parent for pattern in ("*_test.py", "test_*.py") for file in place.rglob(pattern)}
    for folder in sorted(tests):
        if any(not _is_test(file) for file in folder.glob("*.py")):
            name = folder.relative_to(place).as_posix()
            metadata = {"format": "folder", "path": str(folder)}
            yield Task(id=folder.name if name == "." else name, metadata=metadata)


def _is_test(file: Path) -> bool:
    return file.stem.startswith("test_") or file.stem.endswith("_test") or file.name == "conftest.py"
