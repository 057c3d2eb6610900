"""ReTool: mathematics with a Python interpreter, which runs in a sandbox.

The recipe is that of slime's examples/retool: the same tool, a new process for each call, and the reward of DAPO with
its encouragement to call the tool. README.md says what differs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pydantic import BaseModel, ConfigDict, Field

from agentrl import Action, Env, Message, Reward, StepResult, Task, Trajectory, tool
from agentrl.engine.scripted import Turn
from agentrl.errors import leaves
from agentrl.rewards import dapo
from agentrl.rewards.grader import as_reward
from agentrl.sandbox import Sandbox, SandboxKilledError, SandboxState
from agentrl.testing import call
from agentrl_sandbox import SandboxPool, SandboxSpec
from agentrl_sandbox.needs import needs

SYSTEM = (
    "You solve mathematical problems. Use the tool code_interpreter to calculate. "
    "The last line of your answer is of the form Answer: \\boxed{...}"
)


class ReToolConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    backend: str = "auto"
    """The back end of the sandboxes that run the code: docker, bubblewrap, local (trusted code only), auto, or
    hosted:package.module:Class."""
    spec: SandboxSpec = SandboxSpec(memory_mb=512, disk_mb=64)
    size: int | None = Field(None, gt=0)
    """The most sandboxes at a time; null: as many as the machine can run."""
    seconds: float = Field(30.0, gt=0, le=240)
    """The time limit of a piece of code, in seconds."""
    output: int = Field(4000, ge=100)
    """The most bytes of the code's output for the model. Longer output is shortened in the middle."""


class ReTool(Env):
    config: ReToolConfig
    shared: SandboxPool
    box: Sandbox
    reward_range = (-1.1, 1.0)

    @classmethod
    def share(cls, config: ReToolConfig) -> SandboxPool:
        return SandboxPool(config.backend, config.spec, size=config.size)

    @classmethod
    def needs(cls, config: ReToolConfig, episodes: int) -> Sequence[str]:
        return needs(config.backend, config.spec, episodes, config.size)

    async def reset(self, task: Task) -> list[Message]:
        self.box = await self.enter(self.shared.acquire())
        asked = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else list(task.prompt)
        return asked if asked[0]["role"] == "system" else [{"role": "system", "content": SYSTEM}, *asked]

    @tool(timeout=270, parallel=False)
    async def code_interpreter(self, code: str) -> str:
        """Run Python code and see what it prints. Each call is a new process, so no variable survives it.

        Args:
            code: The code; print what you want to see.
        """
        run, seconds = "cat > code.py && exec python3 code.py 2>&1", self.config.seconds
        written = code.encode(errors="replace")
        result = await self.box.exec(run, stdin=written, timeout=seconds, max_output=self.config.output)
        if result.timed_out:
            return f"{result.stdout}\n[stopped after {seconds:g} s]"
        if result.exit_code == 137:
            return f"{result.stdout}\n[killed: it used more than {self.config.spec.memory_mb} MiB of memory]"
        return result.stdout or f"[no output, exit code {result.exit_code}]"

    async def step(self, action: Action) -> StepResult:
        try:
            return await self.run_tools(action)
        except (SandboxKilledError, BaseExceptionGroup) as exc:
            if not all(isinstance(one, SandboxKilledError) for one in leaves(exc)):
                raise
            return StepResult(done=True, info={"sandbox_killed": str(exc)})

    async def score(self, trajectory: Trajectory) -> Reward:
        """As in slime's example: 1 for a right answer. A wrong answer gets -1.1 and 0.05 more for each call, at most
        -0.6."""
        graded = as_reward(await dapo(trajectory))
        calls = sum(len(turn.calls) for turn in trajectory.turns)
        value = graded.value if graded.value > 0 else min(-0.6, graded.value + (calls - 2) / 2 * 0.1)
        return Reward(value, {**graded.parts, "calls": float(calls)})

    async def snapshot(self) -> SandboxState:
        return await self.shared.snapshot(self.box)

    async def restore(self, state: SandboxState) -> None:
        self.box = await self.enter(self.shared.acquire(restore=state))


def player(task: Task) -> Generator[Turn, str, None]:
    """Runs the code in the problem's metadata, and answers with its output."""
    printed = yield call("code_interpreter", code=task.metadata["code"])
    yield f"The code says {printed.strip()}.\n\nAnswer: \\boxed{{{printed.strip()}}}"
