"""Machines whose service is a folder: they and the kept ones are files there, which outlive the process that made them.

A machine runs one process, which counts how often it was told `tick`. No snapshot of files holds that.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agentrl import Env, SandboxError, tool
from agentrl.engine import ScriptedEngine
from agentrl.sandbox import ExecResult, MachineSnapshot
from agentrl.testing import call
from agentrl_sandbox import FakeSandbox, FoundSandbox, SandboxPool, SandboxSpec
from agentrl_sandbox.owners import current, is_gone

FOLDER = "AGENTRL_TEST_MACHINES"
ENDS_AT = 5


def folder() -> Path:
    return Path(os.environ[FOLDER])


@dataclass(frozen=True, slots=True)
class FolderSnapshot(MachineSnapshot):
    async def release(self) -> None:
        (folder() / self.image).unlink(missing_ok=True)


class Machine(FakeSandbox):
    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(self.play, workdir=spec.workdir)
        self.spec, self.file = spec, folder() / self.sandbox_id

    async def __aenter__(self):
        state = {"ticks": 0}
        if self.spec.image:
            try:
                state = json.loads((folder() / self.spec.image).read_text())
            except FileNotFoundError:
                raise SandboxError(f"there is no machine {self.spec.image}") from None
        self.file.write_text(json.dumps({**state, "owner": current()}))
        return await super().__aenter__()

    async def __aexit__(self, *exc):
        self.file.unlink(missing_ok=True)
        await super().__aexit__(*exc)

    def play(self, asked):
        state = json.loads(self.file.read_text())
        self.file.write_text(json.dumps({**state, "ticks": state["ticks"] + 1}))
        return ExecResult(0, f"{state['ticks'] + 1} ticks\n")


class FilesOnly:
    """A back end whose service keeps no machines."""

    name = "folder"
    keeps_machines: ClassVar[bool] = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc): ...

    def sandbox(self, spec):
        return Machine(spec)

    async def prepare(self, image): ...

    async def keep(self, sandbox):
        until = time.time() + sandbox.spec.lifetime_s
        name = f"kept-{until:.0f}-{secrets.token_hex(4)}"
        (folder() / name).write_text(sandbox.file.read_text())
        return FolderSnapshot(self.name, name, until)

    async def list(self):
        found = []
        for file in folder().iterdir():
            until = float(file.name.split("-")[1]) if file.name.startswith("kept-") else float("inf")
            owner = json.loads(file.read_text()).get("owner", "") if until == float("inf") else ""
            found.append(FoundSandbox(file.name, "", owner, "", until, is_gone(owner, until)))
        return found

    async def remove(self, sandbox_ids):
        for one in sandbox_ids:
            (folder() / one).unlink(missing_ok=True)


class Keeping(FilesOnly):
    keeps_machines = True


class Ticking(Env):
    @classmethod
    def share(cls, config):
        return SandboxPool(Keeping(), SandboxSpec(), size=8, warm=0)

    async def reset(self, task):
        self.box = await self.enter(self.shared.acquire())
        return "Tick."

    @tool
    async def tick(self) -> str:
        """Tell the process."""
        return (await self.box.exec("tick")).stdout

    def score(self, trajectory):
        return float(str(trajectory.messages[-2]["content"]).split()[0])

    async def snapshot(self):
        return {"deep": [await self.shared.snapshot(self.box)]}

    async def restore(self, state):
        self.box = await self.enter(self.shared.acquire(restore=state["deep"][0]))


class TickingFiles(Ticking):
    @classmethod
    def share(cls, config):
        return SandboxPool(FilesOnly(), SandboxSpec(), size=8, warm=0)


def ticker(renderer) -> ScriptedEngine:
    """Ticks until the process has counted to `ENDS_AT`. It has no state of its own."""

    def turn(input_ids):
        return "Done." if f"{ENDS_AT} ticks" in renderer.decode(input_ids) else call("tick")

    return ScriptedEngine(turn, renderer)
