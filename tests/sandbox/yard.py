"""A back end for tests of the pool: it counts what is open, and fails or hangs as it is told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque

from agentrl.errors import SandboxError
from agentrl_sandbox import FakeSandbox, SandboxSpec


class YardBox(FakeSandbox):
    def __init__(self, yard: Yard, spec: SandboxSpec) -> None:
        super().__init__()
        self.yard, self.spec = yard, spec
        self.dead = self.restored = None

    async def __aenter__(self):
        self.yard.begun += 1
        self.yard.opening += 1
        self.yard.most_opening = max(self.yard.most_opening, self.yard.opening)
        self.yard.look()
        try:
            if self.yard.hang is not None:
                await self.yard.hang.wait()
            await self.yard.lag()
            if self.yard.errors and (error := self.yard.errors.popleft()) is not None:
                raise error
        finally:
            self.yard.opening -= 1
        self.yard.open.add(self)
        self.yard.look()
        return await super().__aenter__()

    async def __aexit__(self, *exc):
        try:
            await self.yard.lag()
        finally:
            self.yard.open.discard(self)
            self.yard.closed += 1
        await super().__aexit__(*exc)

    async def ping(self):
        await self.yard.lag()
        if self.dead:
            raise SandboxError(self.dead)

    async def restore(self, snapshot):
        await self.yard.lag()
        self.restored = snapshot


class Yard:
    """`errors` are raised by the next creations, in turn; `slow` is the longest a step takes, in seconds."""

    name = "yard"

    def __init__(self, *, errors=(), slow: float = 0.0, seed: int = 0) -> None:
        self.errors, self.slow, self.random = deque(errors), slow, random.Random(seed)
        self.open: set[YardBox] = set()
        self.opening = self.most_opening = self.most = self.begun = self.closed = 0
        self.prepared: list[str] = []
        self.asked: Counter[str] = Counter()
        self.missing: set[str] = set()
        self.hang: asyncio.Event | None = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc): ...

    def sandbox(self, spec):
        return YardBox(self, spec)

    async def prepare(self, image):
        await self.lag()
        self.asked[image] += 1
        if image in self.missing:
            raise SandboxError(f"no image {image}")
        self.prepared.append(image)

    async def list(self):
        return []

    async def remove(self, sandbox_ids): ...

    async def lag(self) -> None:
        if self.slow:
            await asyncio.sleep(self.random.random() * self.slow)
        else:
            await asyncio.sleep(0)

    def look(self) -> None:
        self.most = max(self.most, len(self.open) + self.opening)
