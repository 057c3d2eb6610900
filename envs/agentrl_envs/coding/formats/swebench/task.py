"""A SWE-bench instance as a Problem. Images come from the data set."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote

from agentrl import ConfigError, InfraError, Task
from agentrl.sandbox import Sandbox
from agentrl_envs.coding.formats.surroundings import (
    NO_GIT_SETTINGS,
    NO_USER_SITE,
    NOTE_NAMES,
    NOTED_RESULTS,
    SETTINGS,
    own_first,
    results_in,
    settle,
)
from agentrl_envs.coding.formats.swebench.grading import END, EXIT_CODE, START, Result, grade_log
from agentrl_envs.coding.formats.swebench.instance import TESTBED, Instance, parse_instance, read_instances
from agentrl_envs.coding.problem import Grade, Problem, Solution, Step

_TEST_PATCH = "/tmp/.test.patch"
_GOLD = "/tmp/.gold.patch"
_LOG_BYTES = 32 << 20
_TESTS_S = 1800.0
_ACTIVATE = "[ -f /opt/miniconda3/bin/activate ] && source /opt/miniconda3/bin/activate testbed"
"""A shell line that activates the interpreter with the project and its requirements. The image's default interpreter
lacks both."""

_SURROUNDINGS = NO_USER_SITE + NO_GIT_SETTINGS
_SETTINGS = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "Makefile"),
    *SETTINGS,
)
_TEST_FOLDERS = {"test", "tests", "testing", "e2e"}
_TEST_MODULES = ("test", "test_*", "*_test", "tests", "runtests")
"""Patterns for names of test modules, without a suffix: Python prefers a package or a compiled module to a file of the
same name."""

HIDE_HISTORY = """set -e
base=$(git rev-parse HEAD)
for remote in $(git remote); do git remote remove "$remote"; done
git checkout -q --detach "$base"
git for-each-ref --format='%(refname)' | while read -r ref; do git update-ref -d "$ref"; done
rm -f .git/FETCH_HEAD .git/ORIG_HEAD .git/packed-refs
git reflog expire --expire=now --all
git gc -q --prune=now
later=$(git cat-file --batch-check --batch-all-objects | awk '$2 == "commit" {print $1}' | while read -r one; do
  git merge-base --is-ancestor "$one" "$base" || echo "$one"
done)
[ -z "$later" ] || { echo "the repository still holds later commits: $later" >&2; exit 1; }
"""
"""A shell script that removes every commit that is not an ancestor of HEAD: later commits often contain the fix."""


def load(task: Task) -> Problem:
    """The problem of an instance. The metadata has the instance's row as `row`, or the `path` of a file and an
    `instance_id`."""
    instance = _instance(task)
    gold = Solution(files={_GOLD: instance.patch}, command=f"git apply -v {_GOLD} && rm {_GOLD}")
    step = Step(
        instruction=instance.problem_statement,
        grader=SwebenchGrader(instance),
        gold=gold if instance.patch else None,
        setup=f"{HIDE_HISTORY}{NOTE_NAMES}\n",
        without=tests_own(instance),
        grade_s=_TESTS_S + 60,
    )
    spec = {"workdir": TESTBED, "user": "root", "read_only": False, "memory_mb": 4096, "disk_mb": 4096}
    return Problem(steps=(step,), image=instance.image_name, spec=spec, activate=_ACTIVATE)


@dataclass(frozen=True, slots=True)
class SwebenchGrader:
    """Runs an instance's tests, with the test patch, on the agent's work, and grades the log."""

    instance: Instance

    async def grade(self, box: Sandbox) -> Grade:
        """1 if the instance is resolved, else 0. The parts of the grade are the shares of passed tests in both lists.
        Raises InfraError if the tests never began."""
        place = await settle(box, TESTBED)
        has_results = self.instance.style == "pytest"
        under = own_first(place) + _SURROUNDINGS + (NOTED_RESULTS if has_results else "")
        await box.write_file(_TEST_PATCH, self.instance.test_patch)
        ran = await box.exec(
            f"{under}bash -c {quote(evaluation(self.instance))} 2>&1",
            cwd=TESTBED,
            timeout=_TESTS_S,
            max_output=_LOG_BYTES,
        )
        if ran.truncated:
            return Grade(0.0, log=f"the tests printed more than {_LOG_BYTES >> 20} MiB")
        if ran.timed_out and START not in ran.stdout:
            raise InfraError(
                f"{self.instance.instance_id}: the evaluation script did not reach its tests within {_TESTS_S:g} s: "
                f"{' '.join(ran.stdout[-400:].split())}"
            )
        if ran.timed_out:
            return Grade(0.0, log=f"the tests took longer than {_TESTS_S:g} s")
        report = grade_log(self.instance, ran.stdout, results=await _results(box, place) if has_results else None)
        if report.broken:
            raise InfraError(f"{self.instance.instance_id}: {report.reason}: {' '.join(ran.stdout[-400:].split())}")
        return Grade(float(report.resolved), report.share(), f"{report.reason}\n{ran.stdout[-20_000:]}")


async def _results(box: Sandbox, place: str) -> dict[str, Result]:
    """Test id -> result, as pytest's plugin recorded the test."""
    try:
        text = (await box.read_bytes(results_in(place), max_bytes=_LOG_BYTES)).decode(errors="replace")
    except OSError:
        return {}
    results = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a line that the work wrote into it
            test, marked, ending = json.loads(line)
            results[str(test)] = Result(str(ending), marked == "marked")
    return results


def tests_own(instance: Instance) -> Callable[[str], bool]:
    """A function that tells whether a path belongs to the tests: the file runs, configures or helps tests.

    The agent's changes to such files do not count: in the data sets, a fix changes only other files. Folders that the
    instance's fix changes do not belong to the tests.
    """
    fixed = {path.rpartition("/")[0] for path in instance.fixed_files()}
    named = {*instance.fixed_files()}
    tests = {_module(file) for file in instance.test_files()}

    def is_own(path: str) -> bool:
        if path in named:
            return False
        *folders, name = path.split("/")
        if any(fnmatch(part, pattern) for part in (*folders, name) for pattern in _SETTINGS):
            return True
        if any(_module("/".join(path.split("/")[:depth])) in tests for depth in range(1, len(folders) + 2)):
            return True
        if "/".join(folders) in fixed:
            return False
        modules = [_module(part) for part in (*folders, name)]
        return bool(_TEST_FOLDERS & set(folders)) or any(
            fnmatch(module, pattern) for module in modules for pattern in _TEST_MODULES
        )

    return is_own


def _module(path: str) -> str:
    """A path up to the first dot of its name."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0] or name}"


def evaluation(instance: Instance) -> str:
    """The script that runs the tests: the row's script, or an equal script for older rows."""
    if instance.eval_script:
        return instance.eval_script
    files = " ".join(map(quote, instance.test_files()))
    checkout = f'git checkout {quote(instance.base_commit or "HEAD")} -- "$file" || rm -f "$file"'
    reset = f"for file in {files}; do {checkout}; done"
    return "\n".join(
        [
            f"cd {TESTBED}; {_ACTIVATE}",
            f"{reset} 2>/dev/null",
            f"git apply -v {_TEST_PATCH} || echo '>>>>> Patch Apply Failed'",
            f"echo '{START}'",
            instance.command(),
            "code=$?",
            f"echo '{END}'",
            f'echo "{EXIT_CODE}: $code"',
        ]
    )


def _instance(task: Task) -> Instance:
    row, path = task.metadata.get("row"), task.metadata.get("path")
    if row is not None:
        return parse_instance(json.loads(row) if isinstance(row, str) else row, f"task {task.id!r}")
    if not isinstance(path, str):
        raise ConfigError(f"task {task.id!r}: metadata needs the instance as `row`, or `path` and `instance_id`")
    instance_id = task.metadata.get("instance_id", task.id)
    for instance in read_instances(Path(path)):
        if instance.instance_id == instance_id:
            return instance
    raise ConfigError(f"task {task.id!r}: {path} holds no instance {instance_id!r}")
