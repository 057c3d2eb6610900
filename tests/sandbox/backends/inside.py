"""What tests ask a sandbox about itself."""

import asyncio
import itertools
import os

REAL = ("local", "bubblewrap", "docker", "hosted", "e2b")
"""Back ends that run commands."""
ISOLATED = ("bubblewrap", "docker")
"""Back ends for what a model wrote."""

_numbers = itertools.count(os.getpid() * 1000)

_COUNT = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cxFf <(echo $WORD)"


def long_time() -> str:
    """A number of seconds to sleep, by which the process is found."""
    return f"40.{next(_numbers)}"


async def count(box, word: str) -> int:
    """How many processes that the sandbox sees have this argument."""
    return int((await box.exec(_COUNT, env={"WORD": word})).stdout)


async def becomes(box, word: str, number: int) -> bool:
    """Whether `count` becomes `number` within a few seconds."""
    for _ in range(100):
        if await count(box, word) == number:
            return True
        await asyncio.sleep(0.03)
    return False


async def started(box, word: str) -> None:
    """Wait for processes with this argument."""
    for _ in range(100):
        if await count(box, word):
            return
    raise AssertionError(f"no process has the argument {word}")


async def appears(box, path: str) -> None:
    """Wait until a command has made the file."""
    for _ in range(200):
        if (await box.exec('[ -e "$F" ]', env={"F": path})).exit_code == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"no command made {path}")
