"""The verdict on a task, from plays: doing nothing must score 0, the task's solution 1, each twice.

Used by `agentrl check`, for an Env and for coding tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal[
    "good", "no-op rewarded", "oracle failed", "flaky", "no oracle", "deadline", "error", "cannot run here"
]
TIMES = 2
"""How often each script is played."""


@dataclass(frozen=True, slots=True)
class Play:
    """The outcome of a play: a score, or an error."""

    score: float | None
    error: str = ""
    late: bool = False
    log: str = ""


def judge(
    noop: Sequence[Play], oracle: Sequence[Play], *, least: float = 0.0, most: float = 1.0
) -> tuple[Verdict, str]:
    """The verdict on a task, and the reason if the verdict is not "good".

    `noop` are the idle plays, which should score `least` or lower. `oracle` are the plays of the solution, which should
    score exactly `most`.
    """
    nothing, solved = [play.score for play in noop], [play.score for play in oracle]
    if any(score is not None and score > least for score in nothing):
        return "no-op rewarded", f"doing nothing scored {_shown(nothing)}"
    if broken := _broken(nothing, solved, [*noop, *oracle]):
        return broken
    if not oracle:
        return "no oracle", "the task has no solution; doing nothing scored 0"
    if any(score != most for score in solved):
        cause = oracle[0].error or " ".join(oracle[0].log[-300:].split())
        return "oracle failed", f"the solution scored {_shown(solved)}" + (f": {cause}" if cause else "")
    return "good", ""


def _broken(
    nothing: Sequence[float | None], solved: Sequence[float | None], plays: Sequence[Play]
) -> tuple[Verdict, str] | None:
    """The verdict if two idle plays score differently, two plays of the solution score differently, or a play has no
    score. Else None."""
    if len(set(nothing)) > 1 or len(set(solved)) > 1:
        broke = next((f": {play.error}" for play in plays if play.error), "")
        return "flaky", f"doing nothing scored {_shown(nothing)}, the solution {_shown(solved)}{broke}"
    if late := next((play for play in plays if play.late), None):
        return "deadline", late.error
    if broke_at := next((play for play in plays if play.score is None), None):
        return "error", broke_at.error
    return None


def _shown(scores: Sequence[float | None]) -> str:
    return " and ".join("an error" if score is None else f"{score:g}" for score in scores) or "nothing"
