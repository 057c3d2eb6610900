"""How the cost of a turn grows in long episodes: for reading a trajectory, and for a request to an agent's session.

python -m benchmarks.long_sessions

Two tables. Reading: `Trajectory.actions`, `to_json`, `mask(turn=)` and others at 125 to 1,000 turns. Requests: a loop
with a tool through `Session.ask`, without HTTP; the last eight requests at 32 to 512. An exponent is the slope of the
CPU times in a plot of logarithms, fitted by least squares: 1 is linear. A request whose history is sent whole has to be
read whole, so its cost has a linear part; `--profile` prints where the time of the largest size goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import time
from collections.abc import Callable, Sequence
from math import log
from statistics import median
from typing import Any

from agentrl import EpisodeOptions, Limits, Trajectory
from agentrl.chat.request import Call, ChatRequest, Entry, Reply
from agentrl.engine import ScriptedEngine
from agentrl.gateway.session.session import Session
from agentrl.testing import call, tiny_renderer
from agentrl.types import Action, Generation, Rendered, RenderedSpan

TURNS = (125, 250, 500, 1000)
REQUESTS = (32, 64, 128, 256, 512)
ROUNDS = 3
LAST = 8
"""The number of requests that are timed at each size."""
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}
PAGE = "The river flows past the city, and on to the sea. " * 8


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(size), by least squares."""
    xs, ys = [log(size) for size in sizes], [log(second) for second in seconds]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return slope / sum((x - mean_x) ** 2 for x in xs)


def trajectory_of(turns: int) -> Trajectory:
    """An episode with `turns` turns, each of 20 sampled and 30 observed tokens."""
    trajectory = Trajectory()
    trajectory.append_prompt(Rendered(range(100), ()), [{"role": "user", "content": "Go."}])
    seen = Rendered(range(30), (RenderedSpan("observation", 0, 25), RenderedSpan("prompt", 25, 30)))
    for number in range(turns):
        if number:
            trajectory.append_observation(seen, [{"role": "user", "content": "Go on."}])
        trajectory.append_model(Generation([*range(20)], [-0.5] * 20, "stop"))
        trajectory.append_action(Action(f"turn {number}", f"turn {number}"))
    return trajectory


READINGS: dict[str, Callable[[Trajectory], object]] = {
    "actions": lambda t: t.actions,
    "last_action": lambda t: t.last_action,
    "final": lambda t: t.final,
    "to_json": lambda t: t.to_json(),
    "from_json": lambda t: Trajectory.from_json(t.to_json()),
    "mask(turn=) of each": lambda t: [t.mask("malformed", turn=turn) for turn in range(t.turn_count)],
    "mask()": lambda t: t.mask("host"),
    "tokens_of each": lambda t: [t.segment.tokens_of(turn) for turn in range(t.turn_count)],
}


def reading_seconds(read: Callable[[Trajectory], object], turns: int) -> float:
    """The median seconds of reading an episode with `turns` turns."""
    times = list[float]()
    for _ in range(ROUNDS):
        trajectory = trajectory_of(turns)
        start = time.process_time()
        read(trajectory)
        times.append(time.process_time() - start)
    return median(times)


class Loop:
    """An agent with a tool, which sends its whole history in each request."""

    def __init__(self) -> None:
        renderer = tiny_renderer()
        self._session = Session("key")
        engine = ScriptedEngine(lambda ids: call("find", what=f"page {len(ids)}"), renderer)
        options = EpisodeOptions(limits=Limits(turns=100_000))
        self._session.play(engine, renderer, options, None, "s")
        self._line = [Entry("system", "You find things."), Entry("user", "Find it.")]

    async def ask(self) -> None:
        """Send a request, and add the result of its call."""
        # A wire reads each request anew, so no entry is the one of the request before.
        entries = tuple(Entry(e.role, e.text, e.reasoning, e.calls, e.receipts, call_id=e.call_id) for e in self._line)
        exchange = self._session.ask(ChatRequest(wire="chat", entries=entries, tools=(json.loads(json.dumps(TOOL)),)))
        (reply,) = await exchange.replies()
        exchange.delivered()
        self._line += [_told(reply), Entry("tool", PAGE, call_id=reply.calls[0].id)]

    async def seconds(self, sizes: Sequence[int], profile: cProfile.Profile | None) -> list[float]:
        """For each size, the mean seconds of the last requests up to this size."""
        times, count = list[float](), 0
        for size in sizes:
            while count < size - LAST:
                await self.ask()
                count += 1
            if profile is not None and size == sizes[-1]:
                profile.enable()
            start = time.process_time()
            for _ in range(LAST):
                await self.ask()
            times.append((time.process_time() - start) / LAST)
            if profile is not None:
                profile.disable()
            count += LAST
        return times


def _told(reply: Reply) -> Entry:
    calls = tuple(Call(each.id, each.name, dict(each.arguments)) for each in reply.calls)  # type: ignore[arg-type]
    return Entry("assistant", reply.content, None, calls, (reply.id, *(each.id for each in calls)))


def row(name: str, sizes: Sequence[int], seconds: Sequence[float]) -> None:
    times = " ".join(f"{1000 * second:9.2f}" for second in seconds)
    print(f"{name:22} {times}   n^{exponent(sizes, seconds):.2f}   last/first {seconds[-1] / seconds[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", action="store_true")
    arguments: Any = parser.parse_args()
    print(f"{'ms at so many turns':22} " + " ".join(f"{size:9}" for size in TURNS))
    for name, read in READINGS.items():
        row(name, TURNS, [reading_seconds(read, turns) for turns in TURNS])
    print(f"\n{'ms a request at':22} " + " ".join(f"{size:9}" for size in REQUESTS))
    profile = cProfile.Profile() if arguments.profile else None
    row("Session.ask", REQUESTS, asyncio.run(Loop().seconds(REQUESTS, profile)))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
