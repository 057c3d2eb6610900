"""Grading a step: by default in a separate clean sandbox, with the agent's files and without the agent's processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from shlex import quote
from statistics import fmean
from typing import Any

from agentrl import Reward
from agentrl.errors import InfraError, one_line
from agentrl.sandbox import Sandbox, SandboxKilledError
from agentrl_envs.coding.problem import ApartGrader, Grade, OwnSandbox, Problem, Step
from agentrl_envs.coding.work import WorkError, carry, carry_paths, prepare
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

_KILL_ALL = r"""
here=$(readlink /proc/self/ns/pid)
[ -n "$here" ] && [ "$here" != "pid:[4026531836]" ] && [ "$here" != {ours} ] || exit 0
exec 2>/dev/null
waiting=" " pid=$$
while [ "$pid" -gt 1 ]; do
  waiting="$waiting$pid " parent=0
  while read -r key value rest; do [ "$key" != PPid: ] || parent=$value; done < "/proc/$pid/status"
  pid=$parent
done
round=0
while [ "$round" -lt 60 ]; do
  [ "$round" -lt 20 ] || sleep 0.1
  round=$((round + 1)) found=
  kill -STOP -1
  for file in /proc/[0-9]*; do
    pid=${{file#/proc/}} state=
    case " 1 {holders} $waiting" in *" $pid "*) continue ;; esac
    kill -0 "$pid" || continue
    while read -r key value rest; do [ "$key" != State: ] || {{ state=$value; break; }}; done < "$file/status"
    case $state in '' | Z | X) ;; *) found="$found $pid" ;; esac
  done
  [ -n "$found" ] || break
  kill -KILL $found
done
kill -CONT $waiting
[ -z "$found" ]
"""
"""A shell command that stops and kills all processes of a sandbox, until none is left. All processes are stopped at
once, as new processes could start while others are stopped. The command spares itself, processes that wait for the
command, and the process that keeps the sandbox open. If the last belongs to the commands' user, this process stays
stopped, as the agent's code could hide in the process.

The command works only in a separate process namespace, neither a machine's first namespace nor this process's: without
isolation, the command must not kill the machine's processes.
"""


async def grade(
    box: Sandbox, steps: Sequence[Step], *, pool: SandboxPool, spec: SandboxSpec, clean: bool | None = None
) -> Grade:
    """Grade the last of `steps`, on the agent's work in `box`. `clean` overrules `Step.clean`.

    Work that ends the grading sandbox, or is too large to copy, scores 0, and the log has the reason. Raises InfraError
    without a credible result.
    """
    step = steps[-1]
    if step.own is not None:
        return await _in_own(box, step, step.own, pool, spec)
    if not (step.clean if clean is None else clean):
        try:
            if not step.keep:
                await end_processes(box)
        except WorkError as exc:
            return Grade(0.0, log=str(exc))
        return await _result(step, box, pool, spec)
    async with pool.acquire(spec, lane="grade") as second:
        for done in steps:
            await prepare(second, done)
        try:
            await carry(box, second, step.carry, step.without)
        except WorkError as exc:
            return Grade(0.0, log=str(exc))
        return await _result(step, second, pool, spec)


async def _in_own(box: Sandbox, step: Step, separate: OwnSandbox, pool: SandboxPool, spec: SandboxSpec) -> Grade:
    """Grade in the separate sandbox that the step defines for its tests."""
    changes = {**separate.spec, **({"image": separate.image} if separate.image else {})}
    other = SandboxSpec.model_validate({**spec.model_dump(), **changes})
    if separate.collect is not None:
        await separate.collect(box)
    async with pool.acquire(other, lane="grade") as second:
        try:
            await carry_paths(box, second, separate.paths)
        except WorkError as exc:
            return Grade(0.0, log=str(exc))
        return await _result(step, second, pool, other)


def total(problem: Problem, grades: Sequence[Grade], *, partial: bool = False) -> Reward:
    """The reward of a problem, given the grades of the first steps. A step without a grade scores 0.

    `partial` uses the passed share of a step's tests, if the grader returns the share.
    """
    scores = [grade.parts.get("tests", grade.score) if partial else grade.score for grade in grades]
    scores += [0.0] * (len(problem.steps) - len(grades))
    parts = [part for grade in grades for part in grade.parts.items()]
    names = dict.fromkeys(name for name, _ in parts)
    means = {name: fmean([value for other, value in parts if other == name]) for name in names}
    return Reward(scores[-1] if problem.total == "final" else fmean(scores), means)


async def _result(step: Step, box: Sandbox, pool: SandboxPool, spec: SandboxSpec) -> Grade:
    if not isinstance(step.grader, ApartGrader):
        return await _ended(step, step.grader.grade(box))
    async with pool.acquire(spec, lane="tests") as tests:
        return await _ended(step, step.grader.grade_apart(box, tests))


async def _ended(step: Step, grading: Coroutine[Any, Any, Grade]) -> Grade:
    try:
        async with asyncio.timeout(step.grade_s) as deadline:
            return await grading
    except SandboxKilledError as exc:
        return Grade(0.0, log=f"what was graded ended the sandbox: {exc}")
    except TimeoutError as exc:
        if not deadline.expired():
            raise
        raise InfraError(f"grading took longer than {step.grade_s:g} s; raise the task's limit") from exc
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as exc:
        raise InfraError(f"what was graded refuses a file of the tests: {one_line(exc)}") from exc


async def end_processes(box: Sandbox) -> None:
    """Kill the agent's remaining processes, so that they cannot tamper with the tests. Does nothing in a sandbox
    without isolation.

    Raises WorkError if a process survives.
    """
    try:
        ours = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: the sandbox is on another machine
        ours = ""
    holders = " ".join(map(str, getattr(box, "holders", ())))
    ended = await box.exec(_KILL_ALL.format(ours=quote(ours), holders=holders), timeout=30)
    if ended.exit_code:
        raise WorkError("what the agent left running cannot be ended")
