"""Warnings of Python and asyncio: coroutines never awaited, tasks whose error was never read, open sessions."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import Mapping
from typing import Any

from agentrl._util.findings import Place
from agentrl.check.playing import EnvUnderTest
from agentrl.errors import one_line


class WarningCollector:
    """Collects the warnings of the module's kinds within `with`."""

    def __init__(self, subject: EnvUnderTest) -> None:
        self._subject, self._warned = subject, list[tuple[str, Place | None]]()

    def __enter__(self) -> WarningCollector:
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._handle)
        self._catching = warnings.catch_warnings(record=True)
        self._warnings = self._catching.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *exc: Any) -> None:
        self._catching.__exit__(*exc)
        self._loop.set_exception_handler(self._before)

    def report(self) -> None:
        gc.collect()
        for warning in self._warnings or ():
            message = str(warning.message)
            if "was never awaited" in message:
                self._warned.append((message.splitlines()[0], self._subject.author.of_text(message)))
        for message, place in self._warned:
            fallback = self._subject.author.of_member("step", "reset", "run")
            if place is None and "never awaited" in message and not self._is_own(message):
                continue
            self._subject.report.error("leaks", place or fallback, message, _remedy(message))

    def _is_own(self, message: str) -> bool:
        named = re.search(r"coroutine '(.+?)'", message)
        return named is not None and any(base.__name__ in named[1] for base in self._subject.author.classes)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        if message.startswith("Unclosed"):
            place = next(
                (place for place, _ in self._subject.author.calls(lambda name: name.endswith("ClientSession"))), None
            )
            self._warned.append((message, place))
        elif "never retrieved" in message and error is not None:
            place = self._subject.author.of_error(error)
            if place is not None:
                self._warned.append((f"a task ended with an error that was never read: {one_line(error)}", place))


def _remedy(message: str) -> str:
    if "never awaited" in message:
        return "write `await` before the call"
    return "await the task" if "task" in message else "close it in close, or open it by `await self.enter(...)`"
