"""One episode under slime enters few rooms: what a reader must open to follow it (docs/structure.md)."""

from __future__ import annotations

import sys
from pathlib import Path

import agentrl
from agentrl import adapt

MOST = 10
"""It was 27 boxes before the loose modules had rooms; 9 now."""


async def test_one_episode_enters_few_rooms(Sample, serve, make_args):
    prefix, entered = str(Path(agentrl.__file__).parent) + "/", set()

    def note(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(prefix):
            entered.add(name.removeprefix(prefix).split("/")[0].removesuffix(".py"))

    def question():
        return Sample(prompt="the capital of France?", label="Paris")

    async with serve() as (_, url):
        args = make_args(url)
        await adapt(args, question(), {})  # fills the caches: what a worker does once is no part of an episode
        sys.setprofile(note)
        try:
            await adapt(args, question(), {})
        finally:
            sys.setprofile(None)
    rooms = entered - {"__init__", "testing"}
    assert len(rooms) <= MOST, sorted(rooms)
