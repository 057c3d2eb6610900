"""Cancel an episode at each await of the Env, and play a new episode for each. The cancelled episode must end at the
await, close, and leave nothing open."""

from __future__ import annotations

import ast
import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from agentrl._util.findings import Place
from agentrl.check.leaks import Leak, LeakTracker
from agentrl.check.places import dotted
from agentrl.check.playing import EnvUnderTest, Speak, play, quiet_cancel
from agentrl.check.repeating import report_left
from agentrl.check.suspended import Suspensions, Wait
from agentrl.errors import leaves, one_line
from agentrl.types import Task

_CHECK = "cancellation"
_EACH = 2
"""The most waits at the same line of code that are cancelled: the first waits."""
PATIENCE_S = 10.0
"""An episode counts as stuck after this many seconds and 20 times its usual duration."""


class StuckError(Exception):
    """An episode waits forever, so no further episode can be played."""


async def cancellation(subject: EnvUnderTest, ledger: LeakTracker, task: Task, speak: Speak) -> tuple[int, int]:
    """Cancel episodes. Returns at how many waits an episode was cancelled, and how many waits were chosen for this."""
    counter = Suspensions(subject.author)
    took = (await play(subject, task, speak, prepare=counter.attach)).seconds
    chosen, seen = [], Counter[Wait]()
    for number, wait in enumerate(counter.waits):
        seen[wait] += 1
        if seen[wait] <= _EACH:
            chosen.append(number)
    until, tried = time.monotonic() + subject.patience_s, 0
    for number in chosen:
        if time.monotonic() > until:
            break
        last = counter.waits[chosen[tried - 1]] if tried else None
        await _unless_stuck(subject, _cancelled_at(subject, ledger, task, speak, number), PATIENCE_S + 20 * took, last)
        tried += 1
    if chosen:  # a lock that the last one still holds is noticed only by another episode
        await _unless_stuck(
            subject, play(subject, task, speak), PATIENCE_S + 20 * took, counter.waits[chosen[tried - 1]]
        )
    return tried, len(chosen)


async def _unless_stuck(
    subject: EnvUnderTest, playing: Coroutine[Any, Any, Any], seconds: float, last: Wait | None
) -> None:
    """Raises StuckError, with a finding, if an episode waits forever because an earlier episode was cancelled."""
    task = asyncio.create_task(playing)
    before = asyncio.all_tasks()
    await asyncio.wait([task], timeout=seconds)
    if task.done():
        task.result()
        return
    waiting = [
        place for other in asyncio.all_tasks() - before if (place := subject.author.of_awaited(other.get_coro()))
    ]
    place = waiting[0] if waiting else subject.author.of_member("step", "reset")
    await quiet_cancel(task)
    after = f", after another was cancelled in {last.hook} at line {last.place.line}" if last else ""
    subject.report.error(
        _CHECK,
        place,
        f"an episode waits here for ever{after}",
        "release a hook's resources when it is cancelled: `async with lock:`, or try and finally",
    )
    raise StuckError


async def _cancelled_at(subject: EnvUnderTest, ledger: LeakTracker, task: Task, speak: Speak, number: int) -> None:
    before = ledger.look()
    counter, closing = await _cancel(subject, task, speak, number)
    if counter.cancelled is None:
        return  # this play had fewer waits
    _judge(subject, counter)
    if closing:
        _close_failed(subject, counter.cancelled, closing[0])
    leaks = await _left(ledger, before)
    if leaks:  # once more, as a busy machine may be slow to end something
        before = ledger.look()
        again, _ = await _cancel(subject, task, speak, number)
        same = {leak.same for leak in leaks}
        for leak in [repeated for repeated in await _left(ledger, before) if repeated.same in same]:
            report_left(
                subject, ledger, leak, f"an episode that is cancelled at {again.cancelled and again.cancelled.place}"
            )


async def _left(ledger: LeakTracker, before: Any) -> list[Leak]:
    leaks = await ledger.leaks(before)
    await ledger.clear(leaks)
    return [leak for leak in leaks if leak.same not in ledger.reported]


async def _cancel(
    subject: EnvUnderTest, task: Task, speak: Speak, number: int
) -> tuple[Suspensions, Sequence[Exception]]:
    """Play until the wait with index `number`, and cancel the episode there. Also returns the errors of `close`."""
    playing: asyncio.Task[Any]
    counter = Suspensions(subject.author, number, lambda: playing.cancel())
    closing: list[Exception] = []

    async def whole() -> None:
        from agentrl.check.playing import keep_close_errors

        class _Kept:
            close_errors = closing

        def prepare(env: Any) -> None:
            counter.attach(env)
            keep_close_errors(env, _Kept())  # type: ignore[arg-type]

        await play(subject, task, speak, prepare=prepare)

    playing = asyncio.create_task(whole())
    await asyncio.wait([playing])
    if not playing.cancelled():
        playing.exception()
    return counter, closing


def _judge(subject: EnvUnderTest, counter: Suspensions) -> None:
    wait, report = counter.cancelled, subject.report
    if wait is None or counter.ended == "cancelled":
        return
    place = _catcher(wait.place) or wait.place
    if counter.ended == "returned":
        message = f"{wait.hook} swallows its cancellation at line {wait.place.line}, and continues"
    elif counter.ended == "":
        message = f"{wait.hook} does not end when it is cancelled at line {wait.place.line}"
    else:
        error = one_line(counter.error) if counter.error is not None else counter.ended
        message = f"{wait.hook} turns its cancellation at line {wait.place.line} into another error: {error}"
    report.error(
        _CHECK,
        place,
        message,
        "let asyncio.CancelledError through: catch Exception, or `raise` again after cleaning up",
    )


def _close_failed(subject: EnvUnderTest, wait: Wait, error: Exception) -> None:
    subject.report.error(
        _CHECK,
        subject.author.of_error(error) or subject.author.of_member("close"),
        f"close fails after {wait.hook} was cancelled at line {wait.place.line}: "
        + "; ".join(map(one_line, leaves(error))),
        "close only what exists: reset may end at any await",
    )


def _catcher(place: Place) -> Place | None:
    """The `except` around a line that catches the cancellation."""
    try:
        tree = ast.parse(Path(place.file).read_text())
    except (OSError, SyntaxError):
        return None
    line = None
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.Try) and any(_holds(statement, place.line) for statement in node.body):
            line = next((statement.lineno for statement in node.handlers if _catches(statement)), None) or line
    return Place(place.file, line) if line else None


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [dotted(kind).rpartition(".")[2] if kind is not None else "BaseException" for kind in kinds]
    return bool({"BaseException", "CancelledError"} & set(names))
