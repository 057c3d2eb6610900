"""A stand-in for a service of hosted sandboxes: its machines are bubblewrap sandboxes, and a request is a command.

`E2BSandbox` is slime's own class where SLIME_SRC names slime's source; it imports the stand-in for the vendor's module
`e2b`. Without it, a small class has the same surface.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

from agentrl_sandbox import SandboxSpec, open_backend

SPEC = SandboxSpec(memory_mb=4096, pids=2048, disk_mb=2048, file_mb=1024, cpus=4, lifetime_s=600)
SLIME = os.environ.get("SLIME_SRC")


class CommandExitException(Exception):
    def __init__(self, result):
        self.exit_code, self.stdout, self.stderr = result


class SandboxException(Exception):
    """What the vendor's client raises for a machine that is gone."""


class AsyncSandbox:
    """The vendor's client, as far as slime's class uses it."""

    machines: ClassVar[dict[str, object]] = {}
    refused = ("no-such-image",)
    users = ("root", "agent")

    @classmethod
    async def create(cls, timeout, metadata):
        if metadata["image"] in cls.refused:
            raise ValueError(f"no template {metadata['image']}")
        self = cls()
        self.backend = await open_backend("bubblewrap").__aenter__()
        self.box = await self.backend.sandbox(SPEC).__aenter__()
        self.sandbox_id = self.box.sandbox_id.rpartition("-")[2]
        cls.machines[self.sandbox_id] = self
        self.commands, self.files = SimpleNamespace(run=self.run), SimpleNamespace(read=self.read, write=self.write)
        return self

    async def run(self, cmd, *, user, envs=None, timeout=60, on_stdout=None, on_stderr=None):
        self._check(user)
        result = await self.box.exec(cmd, env=envs or {}, timeout=timeout, cwd="/", max_output=64 << 20)
        if result.timed_out:
            raise TimeoutError("context deadline exceeded")
        if result.exit_code:
            raise CommandExitException(result)
        return result

    async def read(self, path, *, user):
        self._check(user)
        return await self.box.read_file(path)

    async def write(self, path, data, *, user, **options):
        self._check(user)
        await self.box.write_file(path, data.read() if hasattr(data, "read") else data)

    async def kill(self):
        if self.machines.pop(self.sandbox_id, None) is not None:
            await self.box.__aexit__(None, None, None)
            await self.backend.__aexit__(None, None, None)

    def _check(self, user):
        if self.sandbox_id not in self.machines:
            raise SandboxException(f"sandbox {self.sandbox_id} does not exist")
        if user not in self.users:
            raise ValueError(f"no user {user}")


class Plain:
    """slime's surface, without slime."""

    def __init__(self, image, *, timeout=None):
        self.image, self.timeout, self.sandbox_id, self._sb = image, timeout, "", None

    async def __aenter__(self):
        self._sb = await AsyncSandbox.create(timeout=self.timeout, metadata={"image": self.image})
        self.sandbox_id = self._sb.sandbox_id
        return self

    async def __aexit__(self, exc_type, exc, tb):
        if self._sb is not None:
            await self._sb.kill()

    async def exec(self, cmd, *, user="root", env=None, timeout=120, check=False, idempotent=True):
        try:
            return tuple(await self._sb.commands.run(cmd, user=user, envs=env, timeout=timeout))
        except CommandExitException as exc:
            if check:
                raise RuntimeError(f"exit={exc.exit_code}") from None
            return exc.exit_code, exc.stdout, exc.stderr

    async def write_file(self, sandbox_path, content, *, user="root"):
        data = content.read_bytes() if isinstance(content, Path) else content
        await self._sb.files.write(sandbox_path, data, user=user)

    async def read_file(self, sandbox_path, *, user="root"):
        return await self._sb.files.read(sandbox_path, user=user)


def _slimes():
    """Loaded by its file, so that no package `slime` stays behind for other tests to stumble over."""
    spec = importlib.util.spec_from_file_location("slime_agent_sandbox_hosted", Path(SLIME, "slime/agent/sandbox.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.E2BSandbox


E2BSandbox = _slimes() if SLIME else None


def machine(image, *, timeout=None):
    """One that is not entered yet, as a user's own function would make it."""
    if E2BSandbox is None:
        return Plain(image, timeout=timeout)
    return E2BSandbox(image, timeout=timeout, image_metadata_key="image", size="", rpc_retries=2)


@contextmanager
def vendor_module():
    """The modules that slime's class imports when it is used."""
    names = ["e2b", "e2b.sandbox", "e2b.sandbox.commands", "e2b.sandbox.commands.command_handle"]
    made = {name: ModuleType(name) for name in names}
    made["e2b"].AsyncSandbox = AsyncSandbox
    made[names[-1]].CommandExitException = CommandExitException
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
