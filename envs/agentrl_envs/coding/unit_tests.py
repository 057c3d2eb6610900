"""The grader `agentrl.rewards.unit_tests`: the last code block of the answer is run against the tests of the label."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl import uncounted
from agentrl._util.per_loop import PerLoop
from agentrl._util.resources import SharedResource
from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST
from agentrl.rewards.grader import Grader
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward, Task
from agentrl_envs.coding.formats.functions import FunctionTestGrader
from agentrl_envs.coding.grading import grade
from agentrl_envs.coding.problem import Step
from agentrl_envs.coding.suites import FILE, Suite, code_block, suite
from agentrl_sandbox.machine import room
from agentrl_sandbox.pool import SandboxPool
from agentrl_sandbox.spec import SandboxSpec

_BESIDE_S = 60.0
"""Seconds to copy files and to start Python, in addition to the time of the tests."""


class UnitTests(Grader):
    """1 if the last code block of the answer passes all tests of the label, else 0. The part `passed` of the reward is
    the share of passed tests.

    The code gets 0 if all tests together take longer than `seconds`, or if the code ends the sandbox. Each event loop
    has a pool of sandboxes, which is opened on first use, and closed by `close` or when the loop ends.
    """

    def __init__(
        self,
        backend: str = "auto",
        *,
        seconds: float = 15.0,
        partial: bool = False,
        concurrency: int | None = None,
        spec: Mapping[str, JSON] | None = None,
    ) -> None:
        """With `partial`, the reward is the share of passed tests. `concurrency` is the most sandboxes at a time, by
        default as many as the machine's memory and processors allow. `spec` has fields of SandboxSpec, such as
        {"image": "my-image", "memory_mb": 2048}."""
        if seconds <= 0 or (concurrency is not None and concurrency < 1):
            raise ConfigError(
                f"UnitTests: seconds ({seconds:g}) must be positive, and concurrency ({concurrency}) at least 1"
            )
        self.backend, self.seconds, self.partial = backend, seconds, partial
        self.concurrency, self._fields = concurrency, dict(spec or {})
        self._pools: PerLoop[SharedResource[SandboxPool]] = PerLoop()

    async def grade(self, output: ModelOutput) -> Reward:
        """See `Grader.grade`. Raises ConfigError for a label without tests, InfraError if the sandbox broke."""
        tests = suite(output.label)
        code = code_block(output.answer) if len(output.answer) <= LONGEST else None
        passed = 0.0 if code is None else await self._passed(code, tests)
        return Reward(passed if self.partial else float(passed == 1.0), {"passed": passed})

    def check_task(self, task: Task) -> None:
        """See `Grader.check_task`. Raises ConfigError for a label without tests."""
        suite(task.label)

    async def close(self) -> None:
        """Remove the sandboxes of this event loop. The next grade makes new sandboxes."""
        await self._shared().close()

    async def _passed(self, code: str, tests: Suite) -> float:
        spec = self._spec()
        with uncounted():
            pool = await self._shared().get()
        step = Step(
            instruction="",
            grader=FunctionTestGrader(tests.job, tests.files, self.seconds, {FILE: code.encode(errors="replace")}),
            clean=False,  # the sandbox is a new one: nothing ran in it
            keep=True,
            grade_s=self.seconds + _BESIDE_S,
        )
        async with pool.acquire(spec, lane="grade") as box:
            result = await grade(box, [step], pool=pool, spec=spec)
        return float(result.parts.get("tests", 0.0))

    def _shared(self) -> SharedResource[SandboxPool]:
        return self._pools.here(lambda: SharedResource(self._pool))

    def _pool(self) -> SandboxPool:
        # Each grade takes a second sandbox for the tests.
        count = self.concurrency or max(1, room(self._spec()) // 2)
        # The lane of episodes is not used here. Without a spec it keeps no sandbox ready.
        return SandboxPool(self.backend, None, size=1, grade=count, warm=min(count, 4))

    def _spec(self) -> SandboxSpec:
        try:
            return SandboxSpec(**self._fields)
        except ValueError as exc:  # pydantic's
            raise ConfigError(f"UnitTests: spec: {' '.join(str(exc).split())}") from None
