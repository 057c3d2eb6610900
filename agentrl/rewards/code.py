"""Code: the answer's last code block is run against the label's tests, in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from agentrl._util.loading import load_object
from agentrl._util.per_loop import PerLoop
from agentrl._util.resources import SharedResource
from agentrl.env.runtime import uncounted
from agentrl.errors import ConfigError
from agentrl.rewards.answers import LONGEST
from agentrl.rewards.grader import Grader
from agentrl.rewards.suites import FILE, Suite, code_block, suite
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import JSON, Reward

_BESIDE_S = 60.0
"""Seconds for what surrounds the tests: placing files, starting Python."""


class UnitTests(Grader):
    """1 if the last code block of the answer passes all tests of the label, else 0. The part `passed` is their share.

    The code gets 0 if all tests together take longer than `seconds`, or if it ends its sandbox. Each event loop has one
    pool of sandboxes, made on first use. It is closed with the loop, or by `close`.
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
        """`partial`: the reward is the passed share. `concurrency` is the number of sandboxes at a time, by default
        what the machine holds. `spec` holds fields of SandboxSpec: {"image": "my-image", "memory_mb": 2048}."""
        if seconds <= 0 or (concurrency is not None and concurrency < 1):
            raise ConfigError(
                f"UnitTests: seconds ({seconds:g}) must be positive, and concurrency ({concurrency}) at least 1"
            )
        self.backend, self.seconds, self.partial = backend, seconds, partial
        self.concurrency, self._fields = concurrency, dict(spec or {})
        self._pools: PerLoop[SharedResource[Any]] = PerLoop()

    async def grade(self, written: ModelOutput) -> Reward:
        """See `Grader.grade`. Raises ConfigError for a label without tests, InfraError if the sandbox broke."""
        tests = suite(written.label)
        code = code_block(written.answer) if len(written.answer) <= LONGEST else None
        passed = 0.0 if code is None else await self._passed(code, tests)
        return Reward(passed if self.partial else float(passed == 1.0), {"passed": passed})

    async def close(self) -> None:
        """Remove the sandboxes of this event loop. The next grade makes new ones."""
        await self._shared().close()

    async def _passed(self, code: str, tests: Suite) -> float:
        spec = self._spec()
        with uncounted():
            pool = await self._shared().get()
        grader = load_object("agentrl_envs.coding.formats.functions:FunctionGrader")
        step = load_object("agentrl_envs.coding.problem:Step")(
            instruction="",
            grader=grader(tests.job, tests.files, self.seconds, {FILE: code.encode(errors="replace")}),
            clean=False,  # the sandbox is a new one: nothing ran in it
            keep=True,
            grade_s=self.seconds + _BESIDE_S,
        )
        async with pool.acquire(spec, lane="grade") as box:
            found = await load_object("agentrl_envs.coding.grading:grade")(box, [step], pool=pool, spec=spec)
        return float(found.parts.get("tests", 0.0))

    def _shared(self) -> SharedResource[Any]:
        return self._pools.here(lambda: SharedResource(self._pool))

    def _pool(self) -> AbstractAsyncContextManager[Any]:
        # Each grade takes a second sandbox for the tests.
        grade = self.concurrency or max(1, load_object("agentrl_sandbox.machine:room")(self._spec()) // 2)
        # The lane of episodes is not used here. Without a spec it keeps no sandbox ready.
        made: AbstractAsyncContextManager[Any] = load_object("agentrl_sandbox.pool:SandboxPool")(
            self.backend, None, size=1, grade=grade, warm=min(grade, 4)
        )
        return made

    def _spec(self) -> Any:
        try:
            return load_object("agentrl_sandbox.spec:SandboxSpec")(**self._fields)
        except ValueError as exc:  # pydantic's
            raise ConfigError(f"UnitTests: spec: {' '.join(str(exc).split())}") from None
