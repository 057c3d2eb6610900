"""The bill of a run: seconds by phase, tokens, memory, GPU hours and money, over all processes of the run."""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch

from agentrl._util.files import write_atomically
from agentrl.types import JSON

Phase: TypeAlias = Literal["start", "warm_start", "evaluation", "rollout", "hand_over", "train"]
Method = TypeVar("Method", bound=Callable[..., Any])
_GIB = 2**30
_WRITE_EVERY_S = 2.0
_IN_SECONDS = 120
"""The seconds below which a run's time is printed in seconds; a longer time is printed in minutes."""
_NAMES = {"start": "start", "warm_start": "warm start", "hand_over": "hand-over"}


class Bill:
    """Adds up the costs of a run.

    The bill has a separate file. A checkpoint would lose the work that a kill lost, and lost work was paid for, too.
    """

    def __init__(self, usd_per_hour: float | None = None) -> None:
        self.usd_per_hour = usd_per_hour
        self.on_gpu = False
        self._file: Path | None = None
        self._earlier = 0.0
        """Seconds of earlier processes of this run."""
        self._began = self._written_at = time.monotonic()
        self._counting = threading.RLock()
        """The lock of the counts. With `staleness`, updates and rollouts end in different threads."""
        self._seconds: dict[str, float] = defaultdict(float)
        self._tokens: dict[str, int] = defaultdict(int)
        self._peaks: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all processes, without the time between processes."""
        return self._earlier + time.monotonic() - self._began

    def keep_in(self, file: Path, *, on_gpu: bool, seconds: float = 0.0) -> None:
        """Continue the bill in `file`, and write there from now on. `seconds` are the run's earlier seconds, for a run
        folder without such a file."""
        self._file, self.on_gpu, self._earlier = file, on_gpu, seconds
        if file.exists():
            earlier = json.loads(file.read_text(encoding="utf-8"))
            self._earlier = earlier["total_seconds"]
            for name, value in earlier["seconds"].items():
                if name != "rest":
                    self._seconds[name] += value
            for kind, tokens in earlier["tokens"].items():
                self._tokens[kind] += tokens
            self._see(earlier["peak_gib"])

    def write(self) -> None:
        """Write the bill. Does nothing before `keep_in`."""
        self._written_at = time.monotonic()
        if self._file is not None:
            write_atomically(self._file, json.dumps(self.to_json(), indent=1) + "\n")

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def add(self, name: Phase, seconds: float) -> None:
        """Add the seconds of a finished phase. Safe to call from the learner's thread."""
        with self._counting:
            self._seconds[name] += seconds
            self._look_at_memory()
            self.write()

    def count(self, **tokens: float) -> None:
        """Add tokens: `imitated` (read in the warm start), `sampled` to learn from, `evaluated` (sampled in an
        evaluation) and `trained` (read in training)."""
        for kind, number in tokens.items():
            self._tokens[kind] += int(number)
        if time.monotonic() - self._written_at > _WRITE_EVERY_S:
            self.write()

    def _look_at_memory(self) -> None:
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info()
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            sizes = {"allocated": allocated, "reserved": reserved, "device": total - free}
        else:
            unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
            sizes = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
        self._see({name: round(size / _GIB, 3) for name, size in sizes.items()})

    def _see(self, peaks: Mapping[str, float]) -> None:
        for name, gib in peaks.items():
            self._peaks[name] = max(self._peaks[name], gib)

    def to_json(self) -> dict[str, JSON]:
        """The bill as JSON. Overlapping phases count in full, so their sum may exceed `total_seconds`. `peak_gib` on a
        GPU has three peaks: of tensors, of PyTorch's allocator, and of all programs at the ends of phases."""
        whole = self.seconds
        seconds = {name: round(value, 3) for name, value in self._seconds.items()}
        seconds["rest"] = round(max(0.0, whole - sum(self._seconds.values())), 3)
        dollars = None if self.usd_per_hour is None else round(whole / 3600 * self.usd_per_hour, 4)
        return {
            "total_seconds": round(whole, 3),
            "seconds": {**seconds},
            "tokens": {**self._tokens},
            "peak_gib": {**self._peaks},
            "gpu_hours": round(whole / 3600, 4) if self.on_gpu else 0.0,
            "usd_per_hour": self.usd_per_hour,
            "usd": dollars,
        }


def told_cost(bill: Mapping[str, Any]) -> str:
    """The time and the price of a run as text, such as `12.3 minutes, $0.51`."""
    seconds = bill["total_seconds"]
    time_taken = f"{seconds:.0f} seconds" if seconds < _IN_SECONDS else f"{seconds / 60:.1f} minutes"
    return time_taken if bill["usd"] is None else f"{time_taken}, ${bill['usd']:.2f}"


def told_bill(bill: Mapping[str, Any]) -> tuple[str, str]:
    """A line about time and money, and a line about tokens and memory."""
    spent = ", ".join(
        f"{_NAMES.get(name, name)} {seconds:,.{seconds < 10:d}f} s"
        for name, seconds in bill["seconds"].items()
        if seconds >= 0.05
    )
    tokens = ", ".join(f"{count:,} {kind}" for kind, count in bill["tokens"].items() if count)
    peak = max(bill["peak_gib"].values(), default=0.0)
    gpu = f", {bill['gpu_hours']:.3f} GPU hours" if bill["gpu_hours"] else ""
    return (
        f"time                 {told_cost(bill)} ({spent}){gpu}",
        f"tokens               {tokens or 'none'}; memory at its peak: {peak:.1f} GiB",
    )


def billed(phase: Phase) -> Callable[[Method], Method]:
    """Decorates a plain or async method of an object with a `bill`. The time of each call is added to this phase."""

    def decorate(method: Method) -> Method:
        if iscoroutinefunction(method):

            @wraps(method)
            async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
                with self.bill.phase(phase):
                    return await method(self, *args, **kwargs)

            return cast(Method, awaited)

        @wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.bill.phase(phase):
                return method(self, *args, **kwargs)

        return cast(Method, called)

    return decorate
